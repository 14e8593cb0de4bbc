"""Ratios against named peers, measured in one run: `benchmarks/run` lists them."""
