"""Counts of raw events: what one event adds, when a window is asked, and the records that say so; no I/O."""
