"""The privacy ledger of a dataset: its limit, the loss spent, and the loss reserved for open runs.

Under pure differential privacy a run reserves its whole cost, spends the charge of its threshold and of each top from
this reservation, and releases the rest when it closes. Under zCDP refunds that depend on outcomes are not valid:
opening a run charges its whole price, nothing is refunded, and at most one run per dataset is open.
"""

from __future__ import annotations

import msgspec

from stream_svt.errors import BudgetExceeded, MisuseError
from stream_svt.privacy.loss import Kind, as_text

MAX_UNITS = 2**63 - 1
"""Largest limit: about nine billion epsilon, or nine million rho."""

_PURE = Kind.PURE  # a global is faster than an attribute of the enum, and every ledger that is read needs it


class Ledger(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True, gc=False):
    """Exact account of one dataset, a privacy filter: a charge that does not fit raises an error and changes nothing.

    All amounts are integers in units of ``kind`` (see `stream_svt.privacy.loss`), with ``spent + reserved <= limit``.
    Only the methods change them. `MisuseError` for amounts that are negative, not integers or inconsistent. The tag is
    the version of the stored format.

    Attributes:
        kind: The privacy measure.
        limit: Largest total loss, at least 1 unit.
        spent: Loss charged so far; a new ledger may start with the loss of an earlier ledger of the same people.
        reserved: Loss reserved for open runs and not charged yet; always 0 under zCDP.
        run_open: Whether a zCDP run is open; always False under pure privacy, which allows any number of open runs.

    Examples:
        >>> ledger = Ledger(Kind.PURE, limit=4_000_000_000)
        >>> ledger.open_run(1_000_000_000), ledger.spend_reserved(250_000_000)
        (0, 250000000)
        >>> ledger.open_run(4_000_000_000)
        Traceback (most recent call last):
        stream_svt.errors.BudgetExceeded: epsilon 4 does not fit: 0.25 spent and 0.75 reserved of a limit of 4. \
Nothing was charged.
    """

    kind: Kind
    limit: int
    spent: int = 0
    reserved: int = 0
    run_open: bool = False

    def __post_init__(self) -> None:
        for name, units in (("limit", self.limit), ("spent", self.spent), ("reserved", self.reserved)):
            _check_units(units, name)
        if not 1 <= self.limit <= MAX_UNITS:
            raise MisuseError(f"limit must be between 1 and {MAX_UNITS} units")
        if self.spent + self.reserved > self.limit:
            raise MisuseError(
                f"{self.spent} units spent and {self.reserved} reserved exceed the limit of {self.limit}"
            )
        if self.run_open if self.kind is _PURE else self.reserved:
            raise MisuseError(
                "a pure ledger cannot have run_open, and a zCDP ledger cannot have reserved units"
            )

    @property
    def available(self) -> int:
        """Units that are neither spent nor reserved."""
        return self.limit - self.spent - self.reserved

    def open_run(self, units: int) -> int:
        """Reserve what a run costs, or charge it (zCDP); return the increase of ``spent``.

        `BudgetExceeded` if it is not available, `MisuseError` if another zCDP run is open: zCDP prices do not cover
        concurrent runs.
        """
        if self.run_open:
            raise MisuseError("a zCDP ledger has at most one open run: close that run first")
        self._require_available(units)
        if self.kind is _PURE:
            self.reserved += units
            return 0
        self.spent, self.run_open = self.spent + units, True
        return units

    def spend_reserved(self, units: int) -> int:
        """Spend reserved units on a threshold or a top; return the increase of ``spent``, 0 under zCDP."""
        if self.kind is not _PURE:
            return 0
        self._require_reserved(units)
        self.reserved -= units
        self.spent += units
        return units

    def close_run(self, units: int) -> None:
        """Release the units that a closed run reserved and did not spend; under zCDP nothing is refunded."""
        if self.kind is _PURE:
            self._require_reserved(units)
            self.reserved -= units
        elif not self.run_open:
            raise MisuseError("no run is open on this ledger")
        self.run_open = False

    def charge(self, units: int) -> None:
        """Spend units without a reservation; `BudgetExceeded` if they are not available."""
        self._require_available(units)
        self.spent += units

    def raise_limit(self, limit: int) -> None:
        """Set a higher limit, in units. Only an operator does this; a limit never falls."""
        _check_units(limit, "limit")
        if not self.limit < limit <= MAX_UNITS:
            current = f"{self.kind.measure} {self._text(self.limit)}"
            raise MisuseError(f"the new limit must be above the current limit of {current}")
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
                f"{self._text(units)} exceeds the reserved {self._text(self.reserved)}; the ledger is unchanged"
            )


def _check_units(units: int, name: str) -> int:
    if type(units) is not int or units < 0:
        raise MisuseError(f"{name} must be an integer number of units, 0 or more; the ledger is unchanged")
    return units
