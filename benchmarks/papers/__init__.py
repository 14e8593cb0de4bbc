"""The measurements, figures and claims behind `benchmarks/run reproduction`, one module for each paper."""
