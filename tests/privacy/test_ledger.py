"""The ledger against a three-line model, its refusals, and its bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream_svt.errors import BudgetExceeded, MisuseError
from stream_svt.privacy.ledger import MAX_UNITS, Ledger
from stream_svt.privacy.loss import Kind

amounts = st.integers(0, 120)
read = msgspec.msgpack.Decoder(Ledger).decode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, MisuseError)


class PureLedger(RuleBasedStateMachine):
    """Model: a limit, what is spent, and what each open run still holds."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(Kind.PURE, 100)
        self.limit, self.spent, self.runs = 100, 0, []

    def attempt(self, method, units, fits):
        before = msgspec.msgpack.encode(self.ledger)
        if fits:
            getattr(self.ledger, method)(units)
            return True
        with pytest.raises(BudgetExceeded, match="does not fit"):
            getattr(self.ledger, method)(units)
        assert msgspec.msgpack.encode(self.ledger) == before
        return False

    def free(self):
        return self.limit - self.spent - sum(self.runs)

    @rule(units=amounts)
    def open_run(self, units):
        if self.attempt("open_run", units, units <= self.free()):
            self.runs.append(units)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def report_a_top(self, data):
        run = data.draw(st.integers(0, len(self.runs) - 1))
        units = data.draw(st.integers(0, self.runs[run]))
        assert self.ledger.spend_reserved(units) == units
        self.runs[run] -= units
        self.spent += units

    @precondition(lambda self: self.runs)
    @rule()
    def close_run(self):
        self.ledger.close_run(self.runs.pop())

    @rule(units=amounts)
    def charge(self, units):
        if self.attempt("charge", units, units <= self.free()):
            self.spent += units

    @rule(more=st.integers(1, 50))
    def raise_limit(self, more):
        self.limit += more
        self.ledger.raise_limit(self.limit)

    @rule()
    def restart(self):
        self.ledger = read(msgspec.msgpack.encode(self.ledger))

    @invariant()
    def agrees_with_the_model(self):
        account = self.ledger
        assert (account.limit, account.spent, account.reserved) == (self.limit, self.spent, sum(self.runs))
        assert account.available == self.free() >= 0


TestPureLedger = PureLedger.TestCase
TestPureLedger.settings = settings(max_examples=60, stateful_step_count=30)


@given(st.lists(st.tuples(st.booleans(), amounts), max_size=30))
def test_a_zcdp_ledger_charges_whole_runs_and_gives_nothing_back(steps):
    ledger, spent, is_open = Ledger(Kind.ZCDP, 100), 0, False
    for close, units in steps:
        if close and is_open:
            ledger.close_run(units)
            is_open = False
        elif not is_open and units <= 100 - spent:
            assert (ledger.open_run(units), ledger.spend_reserved(units)) == (units, 0)
            spent, is_open = spent + units, True
        elif not close:
            before = msgspec.msgpack.encode(ledger)
            with pytest.raises(MisuseError if is_open else BudgetExceeded):
                ledger.open_run(units)
            assert msgspec.msgpack.encode(ledger) == before
        ledger = read(msgspec.msgpack.encode(ledger))
        assert (ledger.spent, ledger.reserved, ledger.run_open) == (spent, 0, is_open)


def holding(kind, reserved=0):
    ledger = Ledger(kind, 10)
    if reserved:
        ledger.open_run(reserved)
    return ledger


@pytest.mark.parametrize(
    ("ledger", "method", "units", "reason"),
    [
        (holding(Kind.ZCDP), "close_run", 0, "no run is open"),
        (holding(Kind.ZCDP, 4), "open_run", 1, "at most one open run"),
        *(
            (holding(Kind.PURE, 4), method, 5, "exceeds the reserved")
            for method in ("spend_reserved", "close_run")
        ),
        *(
            (holding(Kind.PURE), "raise_limit", limit, "above the current")
            for limit in (9, 10, MAX_UNITS + 1)
        ),
        *(
            (holding(Kind.PURE), method, units, "integer number")
            for method in ("open_run", "spend_reserved", "close_run", "charge", "raise_limit")
            for units in (-1, 0.5, True, None)
        ),
    ],
)
def test_what_a_ledger_cannot_do_is_refused_and_changes_nothing(ledger, method, units, reason):
    before = msgspec.msgpack.encode(ledger)
    with pytest.raises(MisuseError, match=reason):
        getattr(ledger, method)(units)
    assert msgspec.msgpack.encode(ledger) == before


def test_a_refusal_names_the_amounts_in_the_measure_of_the_ledger():
    ledger = Ledger(Kind.ZCDP, 10**11)
    with pytest.raises(
        BudgetExceeded, match=r"rho 1 does not fit: 0 spent and 0 reserved of a limit of 0\.1"
    ):
        ledger.charge(10**12)


@pytest.mark.parametrize("amounts", [(0,), (-1,), (MAX_UNITS + 1,), (1.0,), (10, 11), (10, -1), (10, True)])
def test_a_limit_is_at_least_one_unit_fits_the_stored_form_and_is_not_overspent(amounts):
    with pytest.raises(MisuseError):
        Ledger(Kind.PURE, *amounts)


def test_the_largest_limit_survives_its_bytes():
    ledger = Ledger(Kind.PURE, MAX_UNITS)
    ledger.charge(MAX_UNITS)
    assert read(msgspec.msgpack.encode(ledger)) == ledger


@given(st.binary(max_size=40))
def test_any_bytes_give_a_ledger_or_the_one_named_error(data):
    try:
        ledger = read(data)
    except UNREADABLE:
        return
    assert ledger.spent + ledger.reserved <= ledger.limit


@pytest.mark.parametrize(
    "stored",
    [
        [1, "pure", 10, 8, 3, False],
        [1, "pure", 10, -1, 0, False],
        [1, "pure", 10, 0, -1, False],
        [1, "pure", 0, 0, 0, False],
        [1, "pure", 10, 0, 0, True],
        [1, "zcdp", 10, 0, 1, False],
        [2, "pure", 10, 0, 0, False],
        [1, "other", 10, 0, 0, False],
        [1, "pure", 10, 0, 0, False, 7],
        [1, "pure", 2**63, 0, 0, False],
    ],
)
def test_books_that_cannot_be_are_not_read(stored):
    with pytest.raises(UNREADABLE):
        read(msgspec.msgpack.encode(stored))


def test_the_stored_form_is_pinned():
    """Format 1 stays readable: a change of these bytes needs a new format number."""
    ledger = Ledger(Kind.PURE, 4_000_000_000)
    ledger.open_run(1_000_000_000)
    ledger.spend_reserved(250_000_000)
    pinned = bytes.fromhex("9601a470757265ceee6b2800ce0ee6b280ce2cb41780c2")
    assert msgspec.msgpack.encode(ledger) == pinned
    assert read(pinned) == ledger
    with pytest.raises(TypeError):
        hash(ledger)  # it changes
