"""What every mechanism shares: a run with secret noise and units left, and the outcomes of its tests.

A mechanism is a frozen description. `open` begins a run from fresh noise; `step` tests answers and returns the
next run with the outcomes; `is_over` says whether the run can pay anything more. Nothing here draws noise: it
is handed in, which is what lets the same code run in production, in proofs and in simulations.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import UnreadableState

UNITS_PER_EPSILON = 10**9

Integers = NDArray[np.int64]
BranchNoise = Callable[[int], Integers]
"""Fresh query noise of every test, by branch number."""

_MECHANISM_BYTES = 16
_RUN = struct.Struct(f"<B{_MECHANISM_BYTES}sqQQqq")
_RUN_VERSION = 2


@lru_cache(maxsize=1024)
def mechanism_id(mechanism: Hashable) -> bytes:
    """Return 16 bytes that name a mechanism: a digest of its class and of all its parameters.

    Equal mechanisms have equal names, in every process and release that writes runs of this version.
    """
    return hashlib.sha256(_described(mechanism).encode()).digest()[:_MECHANISM_BYTES]


def _described(value: object) -> str:
    """Return a parameter as text; numpy's integers as Python's."""
    if is_dataclass(value):
        parts = (f"{part.name}={_described(getattr(value, part.name))}" for part in fields(value))
        return f"{type(value).__name__}({','.join(parts)})"
    match value:
        case tuple():
            return f"({','.join(map(_described, value))})"
        case Enum():
            return str(value.value)
        case bool() | float() | str() | Fraction() | None:
            return str(value)
        case int() | np.integer():
            return str(int(value))
    message = f"a parameter of type {type(value).__name__} has no name"
    raise TypeError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One use of a mechanism: a threshold noise and what is left to spend. Holds secrets; its repr does not.

    Attributes:
        threshold_noise: Grid steps; as sensitive as the data, since whoever knows it reads every bottom at
            full price.
        salt: 128 secret bits that keep the query noise of this run apart from that of all others.
        mechanism: Name of the mechanism that opened it, see `mechanism_id`; no other steps it.
        left: Units that tops may still cost.
        tops: Tops reported so far.
    """

    threshold_noise: int = field(repr=False)
    salt: tuple[int, int] = field(repr=False)
    mechanism: bytes = field(repr=False)
    left: int
    tops: int = 0

    def to_bytes(self) -> bytes:
        """Return the run in 57 bytes."""
        return _RUN.pack(_RUN_VERSION, self.mechanism, self.threshold_noise, *self.salt, self.left, self.tops)

    @classmethod
    def from_bytes(cls, data: bytes) -> Run:
        """Run stored by `to_bytes`.

        Raises:
            UnreadableState: When the bytes are not a run of a known version. Never start afresh in its place.
        """
        if len(data) != _RUN.size or data[0] != _RUN_VERSION:
            raise UnreadableState(
                "a stored run has an unknown format: another version wrote it, or it is damaged"
            )
        _, mechanism, threshold_noise, high, low, left, tops = _RUN.unpack(data)
        if left < 0 or tops < 0:
            raise UnreadableState("a stored run holds a negative count; it is damaged")
        return cls(
            threshold_noise=threshold_noise, salt=(high, low), mechanism=mechanism, left=left, tops=tops
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """A reported answer.

    Attributes:
        row: Index of the test in the batch.
        branch: Number of the branch that fired.
        gap: Noisy answer less noisy threshold and correction, in grid steps, at least 0.
        charge: Units this top costs.
        left: Units the run has left after it.
    """

    row: int
    branch: int
    gap: int
    charge: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What a batch of tests may tell: the tops, and how many tests were made before the run ended."""

    consumed: int
    tops: tuple[Top, ...]

    @property
    def charge(self) -> int:
        """Units that these outcomes cost."""
        return sum(top.charge for top in self.tops)
