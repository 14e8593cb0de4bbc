"""A dataset's ledger: what may be lost in all, what is spent, what is promised to open runs.

The ledger is a filter: a charge that does not fit is refused and changes nothing. Under pure differential
privacy a run reserves its whole cost, moves the share of its threshold and of each top from reserved to
spent, and gives back what it did not use. Under zCDP refunds by outcome are not valid: the whole run is
charged when it opens, nothing is ever given back, and one run at most is open on the dataset.
"""

from __future__ import annotations

import msgspec

from stream_svt.errors import BudgetExceeded, MisuseError, UnreadableState
from stream_svt.privacy.loss import Kind, as_text

MAX_UNITS = 2**63 - 1
"""Largest limit: about nine billion epsilon, or nine million rho."""

_FORMAT = 1
_PURE = Kind.PURE  # looked up for every ledger that is read


class _Stored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    format: int
    kind: Kind
    limit: int
    spent: int
    reserved: int
    run_open: bool


_DECODER = msgspec.msgpack.Decoder(_Stored)
_ENCODER = msgspec.msgpack.Encoder()


class Ledger:
    """Exact account of one dataset; every operation is O(1) and leaves the ledger unchanged when it raises.

    All amounts are whole units of ``kind`` (see `stream_svt.privacy.loss`); ``spent + reserved <= limit``.

    Args:
        kind: The privacy measure.
        limit: Most that may ever be lost, at least 1 unit.
        spent: What of it was lost before, under another ledger of the same people.

    Examples:
        >>> ledger = Ledger(Kind.PURE, limit=4_000_000_000)
        >>> ledger.reserve(1_000_000_000)
        >>> ledger.spend_reserved(250_000_000)
        >>> ledger.release(750_000_000)
        >>> ledger
        Ledger(kind='pure', limit=4000000000, spent=250000000, reserved=0)
        >>> ledger.reserve(4_000_000_000)
        Traceback (most recent call last):
        stream_svt.errors.BudgetExceeded: epsilon 4 does not fit: 0.25 spent and 0 reserved of a limit of 4. \
Nothing was charged.
    """

    __slots__ = ("_kind", "_limit", "_reserved", "_run_open", "_spent")

    def __init__(self, kind: Kind, limit: int, spent: int = 0) -> None:
        self._kind = Kind(kind)
        self._limit = _amount(limit, "limit")
        if not 1 <= limit <= MAX_UNITS:
            raise MisuseError(f"a limit must be between 1 and {MAX_UNITS} units")
        self._spent = _amount(spent, "what was spent")
        if spent > limit:
            raise MisuseError(f"{spent} units cannot have been spent of a limit of {limit}")
        self._reserved = 0
        self._run_open = False

    @property
    def kind(self) -> Kind:
        """The privacy measure."""
        return self._kind

    @property
    def limit(self) -> int:
        """Most that may ever be lost, in units."""
        return self._limit

    @property
    def spent(self) -> int:
        """Loss charged so far, in units."""
        return self._spent

    @property
    def reserved(self) -> int:
        """Loss promised to open runs and not charged yet, in units; always 0 under zCDP."""
        return self._reserved

    @property
    def run_open(self) -> bool:
        """Whether a zCDP run is open; always False under pure privacy, where any number may be."""
        return self._run_open

    @property
    def available(self) -> int:
        """What is neither spent nor reserved, in units."""
        return self._limit - self._spent - self._reserved

    def reserve(self, units: int) -> None:
        """Promise ``units`` to a run (pure only).

        Raises:
            BudgetExceeded: They are not available.
        """
        self._pure_only("reserve", "open_run")
        self._fit(units)
        self._reserved += units

    def spend_reserved(self, units: int) -> None:
        """Turn reserved units into spent ones (pure only): the threshold's share, a top."""
        self._pure_only("spend_reserved", "open_run")
        self._held(units)
        self._reserved -= units
        self._spent += units

    def release(self, units: int) -> None:
        """Give back units that a closed run reserved and did not spend (pure only)."""
        self._pure_only("release", "close_run, which gives nothing back")
        self._held(units)
        self._reserved -= units

    def charge(self, units: int) -> None:
        """Spend available units at once, without a reservation.

        Raises:
            BudgetExceeded: They are not available.
        """
        self._fit(units)
        self._spent += units

    def open_run(self, units: int) -> None:
        """Charge the whole price of a run and mark the run open (zCDP only).

        Raises:
            BudgetExceeded: The price is not available.
            MisuseError: Another run is open: concurrent runs are not covered by the zCDP prices.
        """
        self._zcdp_only("open_run", "reserve")
        if self._run_open:
            raise MisuseError("a zCDP ledger carries one open run at a time: close that run first")
        self._fit(units)
        self._spent += units
        self._run_open = True

    def close_run(self) -> None:
        """Mark the open run closed; nothing is given back (zCDP only)."""
        self._zcdp_only("close_run", "release")
        if not self._run_open:
            raise MisuseError("no run is open on this ledger")
        self._run_open = False

    def raise_limit(self, limit: int) -> None:
        """Set a higher limit, in units: an operator's act, for no limit rises by itself or ever falls."""
        _amount(limit, "limit")
        if not self._limit < limit <= MAX_UNITS:
            present = f"{self._kind.measure} {self._text(self._limit)}"
            raise MisuseError(f"the new limit must be above the present one of {present}")
        self._limit = limit

    def to_bytes(self) -> bytes:
        """Return the ledger as bytes for `from_bytes`."""
        return _ENCODER.encode(
            _Stored(_FORMAT, self._kind, self._limit, self._spent, self._reserved, self._run_open)
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledger:
        """Return the ledger that `to_bytes` wrote.

        Raises:
            UnreadableState: The bytes are damaged, of a newer format, or a ledger that cannot be (more lost
                than the limit).
        """
        try:
            stored = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableState("a ledger in the stored state cannot be decoded: restore it") from error
        if stored.format != _FORMAT:
            raise UnreadableState(
                f"a ledger in the stored state has format {stored.format}, this version reads {_FORMAT}: "
                "start the version that wrote it"
            )
        kind, limit, spent, reserved, run_open = (
            stored.kind,
            stored.limit,
            stored.spent,
            stored.reserved,
            stored.run_open,
        )
        if (
            not 1 <= limit <= MAX_UNITS
            or spent < 0
            or reserved < 0
            or spent + reserved > limit
            or (run_open if kind is _PURE else reserved != 0)
        ):
            raise UnreadableState("a ledger in the stored state contradicts itself: restore it")
        ledger = cls.__new__(cls)  # checked above already, and a shard loads hundreds of thousands
        ledger._kind, ledger._limit = kind, limit  # noqa: SLF001
        ledger._spent, ledger._reserved, ledger._run_open = spent, reserved, run_open  # noqa: SLF001
        return ledger

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # a ledger changes

    def __repr__(self) -> str:
        run = ", run_open=True" if self._run_open else ""
        return (
            f"Ledger(kind={self._kind.value!r}, limit={self._limit}, spent={self._spent}, "
            f"reserved={self._reserved}{run})"
        )

    def _text(self, units: int) -> str:
        return as_text(units, self._kind)

    def _fit(self, units: int) -> None:
        if _amount(units, "charge") > self.available:
            raise BudgetExceeded(
                f"{self._kind.measure} {self._text(units)} does not fit: {self._text(self._spent)} spent and "
                f"{self._text(self._reserved)} reserved of a limit of {self._text(self._limit)}. "
                "Nothing was charged.",
                spent=self._spent,
                reserved=self._reserved,
                asked=units,
                limit=self._limit,
            )

    def _held(self, units: int) -> None:
        if _amount(units, "amount") > self._reserved:
            raise MisuseError(
                f"{self._text(units)} was asked of the reservation of {self._text(self._reserved)}; "
                "the ledger is unchanged"
            )

    def _pure_only(self, method: str, instead: str) -> None:
        if self._kind is not Kind.PURE:
            raise MisuseError(f"a zCDP ledger has no {method}: use {instead}")

    def _zcdp_only(self, method: str, instead: str) -> None:
        if self._kind is not Kind.ZCDP:
            raise MisuseError(f"a pure ledger has no {method}: use {instead}")


def _amount(units: int, name: str) -> int:
    if type(units) is not int or units < 0:
        raise MisuseError(f"{name} must be a whole number of units, 0 or more; the ledger is unchanged")
    return units
