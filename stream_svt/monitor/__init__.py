"""What happens to Sparse Vector monitors on a stream over time, as pure state machines.

Nothing here reads a clock, draws randomness or does I/O: noise, time and storage are handed in.
"""
