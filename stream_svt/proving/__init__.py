"""The neighbour test: run the engine on two neighbouring streams and compare all that an adversary sees."""

from stream_svt.proving.neighbours import Summary as Summary
from stream_svt.proving.neighbours import prove as prove
