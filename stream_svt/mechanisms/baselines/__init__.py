"""Mechanisms that no monitor uses: what the literature compares with."""
