"""Mechanisms of one query over many answers: top-k and its hybrids, quantiles, the exponential mechanism."""
