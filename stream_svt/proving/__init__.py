"""Two neighbouring streams through the engine: what an adversary sees is the same, or a counterexample is found."""

from stream_svt.proving.neighbours import Summary as Summary
from stream_svt.proving.neighbours import prove as prove
