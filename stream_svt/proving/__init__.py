"""Two neighbouring streams through the engine: what an adversary sees is the same, or a counterexample is found."""

from stream_svt.proving.neighbours import Counterexample, Summary, prove

__all__ = ["Counterexample", "Summary", "prove"]
