"""JSON records of a common shape, read together: for speed alone."""
