"""The ledger against a three-line model, its refusals, and its bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream_svt.errors import BudgetExceeded, MisuseError, UnreadableState
from stream_svt.privacy.ledger import MAX_UNITS, Ledger
from stream_svt.privacy.loss import Kind

amounts = st.integers(0, 120)


class PureLedger(RuleBasedStateMachine):
    """Model: a limit, what is spent, and what each open run still holds."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(Kind.PURE, 100)
        self.limit, self.spent, self.runs = 100, 0, []

    def attempt(self, method, units, fits):
        before = self.ledger.to_bytes()
        if fits:
            getattr(self.ledger, method)(units)
            return True
        with pytest.raises(BudgetExceeded) as refusal:
            getattr(self.ledger, method)(units)
        assert self.ledger.to_bytes() == before
        assert (refusal.value.asked, refusal.value.limit) == (units, self.limit)
        return False

    def free(self):
        return self.limit - self.spent - sum(self.runs)

    @rule(units=amounts)
    def open_run(self, units):
        if self.attempt("reserve", units, units <= self.free()):
            self.runs.append(units)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def report_a_top(self, data):
        run = data.draw(st.integers(0, len(self.runs) - 1))
        units = data.draw(st.integers(0, self.runs[run]))
        self.ledger.spend_reserved(units)
        self.runs[run] -= units
        self.spent += units

    @precondition(lambda self: self.runs)
    @rule()
    def close_run(self):
        self.ledger.release(self.runs.pop())

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
        self.ledger = Ledger.from_bytes(self.ledger.to_bytes())

    @invariant()
    def agrees_with_the_model(self):
        account = self.ledger
        assert (account.limit, account.spent, account.reserved) == (self.limit, self.spent, sum(self.runs))
        assert account.available == self.free() >= 0


TestPureLedger = PureLedger.TestCase
TestPureLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.booleans(), amounts), max_size=30))
def test_a_zcdp_ledger_charges_whole_runs_and_gives_nothing_back(steps):
    ledger, spent, is_open = Ledger(Kind.ZCDP, 100), 0, False
    for close, units in steps:
        if close and is_open:
            ledger.close_run()
            is_open = False
        elif not is_open and units <= 100 - spent:
            ledger.open_run(units)
            spent, is_open = spent + units, True
        elif not close:
            before = ledger.to_bytes()
            with pytest.raises(MisuseError if is_open else BudgetExceeded):
                ledger.open_run(units)
            assert ledger.to_bytes() == before
        ledger = Ledger.from_bytes(ledger.to_bytes())
        assert (ledger.spent, ledger.reserved, ledger.run_open) == (spent, 0, is_open)


@pytest.mark.parametrize("method", ["reserve", "spend_reserved", "release"])
def test_a_zcdp_ledger_has_no_reservations(method):
    ledger = Ledger(Kind.ZCDP, 100)
    assert ledger.kind is Kind.ZCDP
    with pytest.raises(MisuseError, match="zCDP"):
        getattr(ledger, method)(1)


def test_a_pure_ledger_has_no_single_open_run():
    ledger = Ledger(Kind.PURE, 100)
    with pytest.raises(MisuseError, match="reserve"):
        ledger.open_run(1)
    with pytest.raises(MisuseError, match="release"):
        ledger.close_run()


def test_closing_a_zcdp_run_that_is_not_open_is_refused():
    with pytest.raises(MisuseError, match="no run is open"):
        Ledger(Kind.ZCDP, 100).close_run()


def test_the_last_unit_can_be_spent_and_not_one_more():
    ledger = Ledger(Kind.PURE, 3)
    ledger.charge(3)
    with pytest.raises(BudgetExceeded):
        ledger.charge(1)
    assert ledger.available == 0


def test_a_refusal_names_the_amounts_in_the_measure_of_the_ledger():
    ledger = Ledger(Kind.ZCDP, 10**11)
    with pytest.raises(BudgetExceeded, match=r"rho 1 does not fit: 0 spent .* limit of 0\.1") as refusal:
        ledger.charge(10**12)
    assert (refusal.value.spent, refusal.value.reserved) == (0, 0)


@pytest.mark.parametrize("method", ["spend_reserved", "release"])
def test_more_than_is_reserved_cannot_be_moved(method):
    ledger = Ledger(Kind.PURE, 10)
    ledger.reserve(4)
    with pytest.raises(MisuseError, match="reservation"):
        getattr(ledger, method)(5)
    assert (ledger.spent, ledger.reserved) == (0, 4)


@pytest.mark.parametrize("method", ["reserve", "spend_reserved", "release", "charge", "raise_limit"])
@pytest.mark.parametrize("units", [-1, 0.5, True, None])
def test_an_amount_is_a_whole_number_of_units(method, units):
    ledger = Ledger(Kind.PURE, 10)
    before = ledger.to_bytes()
    with pytest.raises(MisuseError):
        getattr(ledger, method)(units)
    assert ledger.to_bytes() == before


@pytest.mark.parametrize("limit", [0, -1, MAX_UNITS + 1, 1.0])
def test_a_limit_is_at_least_one_unit_and_fits_the_stored_form(limit):
    with pytest.raises(MisuseError):
        Ledger(Kind.PURE, limit)


@pytest.mark.parametrize("limit", [9, 10, MAX_UNITS + 1])
def test_a_limit_is_only_ever_raised(limit):
    ledger = Ledger(Kind.PURE, 10)
    with pytest.raises(MisuseError, match="above the present"):
        ledger.raise_limit(limit)
    assert ledger.limit == 10


def test_the_largest_limit_survives_its_bytes():
    ledger = Ledger(Kind.PURE, MAX_UNITS)
    ledger.charge(MAX_UNITS)
    assert Ledger.from_bytes(ledger.to_bytes()) == ledger


@given(st.binary(max_size=40))
def test_any_bytes_give_a_ledger_or_the_one_named_error(data):
    try:
        ledger = Ledger.from_bytes(data)
    except UnreadableState:
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
        [1, "pure", 10, 0],
        [1, "pure", 10, 0, 0, False, 7],
    ],
)
def test_books_that_cannot_be_are_not_read(stored):
    with pytest.raises(UnreadableState):
        Ledger.from_bytes(msgspec.msgpack.encode(stored))


def test_the_stored_form_is_pinned():
    """Format 1 is read for ever: a change of these bytes needs a new format number."""
    ledger = Ledger(Kind.PURE, 4_000_000_000)
    ledger.reserve(1_000_000_000)
    ledger.spend_reserved(250_000_000)
    pinned = bytes.fromhex("9601a470757265ceee6b2800ce0ee6b280ce2cb41780c2")
    assert ledger.to_bytes() == pinned
    assert Ledger.from_bytes(pinned) == ledger


def test_a_ledger_is_not_hashable_and_differs_from_other_things():
    ledger = Ledger(Kind.PURE, 1)
    assert ledger != "ledger"
    with pytest.raises(TypeError):
        hash(ledger)
    assert "run_open" in repr_of_open_run()


def repr_of_open_run():
    ledger = Ledger(Kind.ZCDP, 5)
    ledger.open_run(2)
    return repr(ledger)
