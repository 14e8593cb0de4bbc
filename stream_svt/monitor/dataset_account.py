"""What one dataset holds: its ledger, its monitors' slots and the number of events released about it."""

from __future__ import annotations

import sys
from collections.abc import Container

from stream_svt.errors import BudgetExceeded, ConfigError, Problem, UnreadableState
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.released import Account
from stream_svt.monitor.snapshot import (
    NO_SECRETS,
    VERSION,
    DatasetRecord,
    RunState,
    State,
    to_bytes,
)
from stream_svt.privacy.ledger import Ledger
from stream_svt.privacy.loss import Kind, as_text, to_float
from stream_svt.settings.datasets import DatasetSpec

_RUNNING = State.RUNNING  # looked up for every slot that is loaded


class DatasetAccount:
    """One dataset of the shard. Amounts are ledger units.

    Args:
        spec: The declaration; its limit becomes the ledger's at the very first start and is then a fact of
            the state.
        ledger: The dataset's ledger, a new one where it has none yet.

    Attributes:
        run_states: By monitor.
    """

    __slots__ = ("declared_limit", "events", "ledger", "name", "run_states", "unit")

    def __init__(self, spec: DatasetSpec, ledger: Ledger | None = None) -> None:
        self.name = spec.name
        self.unit = spec.unit
        self.declared_limit = spec.limit
        self.ledger = Ledger(spec.kind, spec.limit, spec.spent_before) if ledger is None else ledger
        self.events = 0
        self.run_states: dict[str, RunState] = {}

    def run_state(self, monitor: str) -> RunState:
        """Return the run state of a monitor, a new one where it has none yet."""
        run_state = self.run_states.get(monitor)
        if run_state is None:
            run_state = self.run_states[monitor] = RunState()
        return run_state

    def account(self, charge: int) -> Account:
        """Return the account after a charge, for an event."""
        kind = self.ledger.kind
        return Account(
            measure=kind.measure,
            charge=to_float(charge, kind),
            spent=to_float(self.ledger.spent, kind),
            reserved=to_float(self.ledger.reserved, kind),
            limit=to_float(self.ledger.limit, kind),
        )

    def admit(self, run_state: RunState, plan: Plan, reserve: int) -> int | None:
        """Open a run: return what was charged for its threshold, None where nothing fits.

        The run gets the plan's whole epsilon or, where the ledger cannot pay that, as much as it can: fewer tops,
        and of several branches at least the cheapest. ``reserve`` units are left for other monitors. Under zCDP
        the whole run is charged now, and nothing is admitted while another run is open.
        """
        mechanism = plan.mechanism
        if self.ledger.kind is Kind.ZCDP:
            price = plan.spec.run_price(Kind.ZCDP)
            if self.ledger.run_open or price > self.ledger.available - reserve:
                return None
            self.ledger.open_run(price)
            run_state.left = mechanism.epsilon - mechanism.threshold_charge
            run_state.spent += price
            return price
        affordable = min(mechanism.epsilon, self.ledger.available - reserve)
        shorter = mechanism if affordable == mechanism.epsilon else mechanism.shortened(affordable)
        if shorter is None:
            return None
        try:
            self.ledger.reserve(shorter.epsilon)
        except BudgetExceeded:  # pragma: no cover - the amount was cut to what is available
            return None
        self.ledger.spend_reserved(shorter.threshold_charge)
        run_state.left = shorter.epsilon - shorter.threshold_charge
        run_state.spent += shorter.threshold_charge
        return shorter.threshold_charge

    def charge_top(self, run_state: RunState, charge: int) -> int:
        """Pay for a top from the run's reservation; return what the ledger's total rose by."""
        run_state.left -= charge
        if self.ledger.kind is Kind.ZCDP:
            return 0
        self.ledger.spend_reserved(charge)
        run_state.spent += charge
        return charge

    def end_run(self, run_state: RunState, *, full_price: bool = False) -> int:
        """End a run and overwrite its secrets: who reads the state later must not recompute noise.

        What it did not spend is released (pure only), or counts as spent at its ``full_price``, where its outcomes
        cannot be computed again. Returns what the ledger's total rose by.
        """
        lost = 0
        if self.ledger.kind is Kind.ZCDP:
            self.ledger.close_run()
        elif full_price:
            lost = run_state.left
            self.ledger.spend_reserved(lost)
            run_state.spent += lost
        else:
            self.ledger.release(run_state.left)
        run_state.left = 0
        run_state.secrets = NO_SECRETS
        return lost

    @property
    def charges(self) -> int:
        """How many charges were booked; under zCDP a run is charged as a whole when it begins."""
        pure = self.ledger.kind is Kind.PURE
        return sum([run_state.runs + pure * run_state.tops for run_state in self.run_states.values()])

    def to_bytes(self) -> bytes:
        """Return the dataset's state record."""
        return to_bytes(
            DatasetRecord(
                VERSION,
                self.name,
                self.unit,
                self.declared_limit,
                self.ledger.to_bytes(),
                self.events,
                self.run_states,
            )
        )

    @classmethod
    def from_record(
        cls, spec: DatasetSpec | None, record: DatasetRecord, same: Container[str]
    ) -> DatasetAccount:
        """Return the account in a state record; without ``spec`` that of a dataset that is declared no longer.

        Raises:
            ConfigError: The declaration's limit, measure or privacy unit is not the journaled one.
            UnreadableState: A run is open of a monitor that is not among the ``same``.
        """
        ledger = Ledger.from_bytes(record.ledger)
        if spec is None:
            spec = DatasetSpec(
                name=record.name, kind=ledger.kind, limit=record.declared_limit, unit=record.unit
            )
        account = cls(spec, ledger)
        account.declared_limit, account.events = record.declared_limit, record.events
        _refuse_changed_declaration(spec, record, account.ledger)
        for name, run_state in record.run_states.items():
            if run_state.state is _RUNNING and name not in same:
                message = (
                    f"dataset {spec.name}, monitor {name}: run {run_state.run} is open under a specification "
                    "that this release cannot go on with: use the release that wrote the state, and close the run "
                    "there first"
                )
                raise UnreadableState(message)
            # Of equal texts and secrets only one is kept: every dataset has the same.
            if run_state.secrets == NO_SECRETS:
                run_state.secrets = NO_SECRETS
            account.run_states[sys.intern(name)] = run_state
        return account


def _refuse_changed_declaration(spec: DatasetSpec, record: DatasetRecord, ledger: Ledger) -> None:
    if spec.unit != record.unit:
        message = f"the privacy unit is journaled as '{record.unit}' and cannot change; declare a new dataset instead"
        raise ConfigError([Problem(0, f"datasets.{spec.name}.unit", message)])
    if spec.kind is not ledger.kind:
        message = f"the limit is journaled in {ledger.kind.measure}; the measure cannot change"
        raise ConfigError([Problem(0, f"datasets.{spec.name}.limit", message)])
    if spec.limit not in (record.declared_limit, ledger.limit):
        journaled, wanted = as_text(ledger.limit, ledger.kind), as_text(spec.limit, spec.kind)
        message = (
            f"the limit is journaled as {ledger.kind.measure} {journaled}, the file says {wanted}. "
            f"Write {journaled} here"
        )
        if spec.limit > ledger.limit:
            # Whoever asks for it needs a worker that runs, and none does with another limit than the journaled one.
            message += (
                f"; where {wanted} is meant, raise it for ever once a worker runs with {journaled}: "
                f"stream-svt control raise-budget -c FILE {spec.name} --limit {wanted}"
            )
        else:
            message += "; a limit never falls"
        raise ConfigError([Problem(0, f"datasets.{spec.name}.limit", message)])
