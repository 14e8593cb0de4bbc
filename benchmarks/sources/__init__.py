"""Counts of raw events."""
