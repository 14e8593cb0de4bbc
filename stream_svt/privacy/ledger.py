"""A dataset's ledger: what may be lost in all, what is spent, what is promised to open runs.

The ledger is a filter: a charge that does not fit is refused and changes nothing. Under pure differential
privacy a run reserves its whole cost, moves the share of its threshold and of each top from reserved to
spent, and gives back what it did not use. Under zCDP refunds by outcome are not valid: the whole run is
charged when it opens, nothing is ever given back, and one run at most is open on the dataset.
"""

from __future__ import annotations

import msgspec

from stream_svt.errors import BudgetExceeded, MisuseError
from stream_svt.privacy.loss import Kind, as_text

MAX_UNITS = 2**63 - 1
"""Largest limit: about nine billion epsilon, or nine million rho."""

_PURE = Kind.PURE  # looked up for every ledger that is read


class Ledger(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True, gc=False):
    """Exact account of one dataset; every operation is O(1) and leaves the ledger unchanged when it raises.

    All amounts are whole units of ``kind`` (see `stream_svt.privacy.loss`); ``spent + reserved <= limit``. They change
    by the methods only. The tag is the number of the stored format.

    Attributes:
        kind: The privacy measure.
        limit: Most that may ever be lost, at least 1 unit.
        spent: Loss charged so far; a new ledger may begin with what was lost before, under another one of the same
            people.
        reserved: Loss promised to open runs and not charged yet; always 0 under zCDP.
        run_open: Whether a zCDP run is open; always False under pure privacy, where any number may be.

    Raises:
        MisuseError: For amounts that no ledger can hold.

    Examples:
        >>> ledger = Ledger(Kind.PURE, limit=4_000_000_000)
        >>> ledger.reserve(1_000_000_000)
        >>> ledger.spend_reserved(250_000_000)
        >>> ledger.release(750_000_000)
        >>> ledger.spent, ledger.reserved
        (250000000, 0)
        >>> ledger.reserve(4_000_000_000)
        Traceback (most recent call last):
        stream_svt.errors.BudgetExceeded: epsilon 4 does not fit: 0.25 spent and 0 reserved of a limit of 4. \
Nothing was charged.
    """

    kind: Kind
    limit: int
    spent: int = 0
    reserved: int = 0
    run_open: bool = False

    def __post_init__(self) -> None:
        for name, units in (
            ("limit", self.limit),
            ("what was spent", self.spent),
            ("a reserve", self.reserved),
        ):
            _check_units(units, name)
        if not 1 <= self.limit <= MAX_UNITS:
            raise MisuseError(f"a limit must be between 1 and {MAX_UNITS} units")
        if self.spent + self.reserved > self.limit:
            raise MisuseError(f"{self.spent} units cannot have been spent of a limit of {self.limit}")
        if self.run_open if self.kind is _PURE else self.reserved:
            raise MisuseError("a pure ledger has no open run, and a zCDP ledger no reservations")

    @property
    def available(self) -> int:
        """What is neither spent nor reserved, in units."""
        return self.limit - self.spent - self.reserved

    def reserve(self, units: int) -> None:
        """Promise ``units`` to a run (pure only); `BudgetExceeded` where they are not available."""
        self._require_kind(Kind.PURE, "reserve", "open_run")
        self._require_available(units)
        self.reserved += units

    def spend_reserved(self, units: int) -> None:
        """Turn reserved units into spent ones (pure only): the threshold's share, a top."""
        self._require_kind(Kind.PURE, "spend_reserved", "open_run")
        self._require_reserved(units)
        self.reserved -= units
        self.spent += units

    def release(self, units: int) -> None:
        """Give back units that a closed run reserved and did not spend (pure only)."""
        self._require_kind(Kind.PURE, "release", "close_run, which gives nothing back")
        self._require_reserved(units)
        self.reserved -= units

    def charge(self, units: int) -> None:
        """Spend units at once, without a reservation; `BudgetExceeded` where they are not available."""
        self._require_available(units)
        self.spent += units

    def open_run(self, units: int) -> None:
        """Charge the whole price of a run and mark the run open (zCDP only).

        `BudgetExceeded` where the price is not available, `MisuseError` where another run is open: concurrent runs
        are not covered by the zCDP prices.
        """
        self._require_kind(Kind.ZCDP, "open_run", "reserve")
        if self.run_open:
            raise MisuseError("a zCDP ledger carries one open run at a time: close that run first")
        self._require_available(units)
        self.spent += units
        self.run_open = True

    def close_run(self) -> None:
        """Mark the open run closed; nothing is given back (zCDP only)."""
        self._require_kind(Kind.ZCDP, "close_run", "release")
        if not self.run_open:
            raise MisuseError("no run is open on this ledger")
        self.run_open = False

    def raise_limit(self, limit: int) -> None:
        """Set a higher limit, in units: an operator's act, for no limit rises by itself or ever falls."""
        _check_units(limit, "limit")
        if not self.limit < limit <= MAX_UNITS:
            present = f"{self.kind.measure} {self._text(self.limit)}"
            raise MisuseError(f"the new limit must be above the present one of {present}")
        self.limit = limit

    def _text(self, units: int) -> str:
        return as_text(units, self.kind)

    def _require_available(self, units: int) -> None:
        if _check_units(units, "charge") > self.available:
            raise BudgetExceeded(
                f"{self.kind.measure} {self._text(units)} does not fit: {self._text(self.spent)} spent and "
                f"{self._text(self.reserved)} reserved of a limit of {self._text(self.limit)}. "
                "Nothing was charged."
            )

    def _require_reserved(self, units: int) -> None:
        if _check_units(units, "amount") > self.reserved:
            raise MisuseError(
                f"{self._text(units)} was asked of the reservation of {self._text(self.reserved)}; "
                "the ledger is unchanged"
            )

    def _require_kind(self, kind: Kind, method: str, instead: str) -> None:
        if self.kind is not kind:
            name = "pure" if self.kind is _PURE else "zCDP"
            raise MisuseError(f"a {name} ledger has no {method}: use {instead}")


def _check_units(units: int, name: str) -> int:
    if type(units) is not int or units < 0:
        raise MisuseError(f"{name} must be a whole number of units, 0 or more; the ledger is unchanged")
    return units
