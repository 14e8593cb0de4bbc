"""Sparse Vector monitors on streams, as pure state machines: runs, repeated tests, ledgers, state and events.

Nothing here reads a clock, draws randomness or does I/O: callers provide noise, time and storage.
"""
