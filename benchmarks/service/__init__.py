"""Figures of a worker on a real broker: over messages, columns, decimals and several workers."""
