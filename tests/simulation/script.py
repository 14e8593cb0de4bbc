"""One history as data: what the world is like, and which faults happen after which effect."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    KILL_BEFORE = "the process dies before the effect"
    KILL_AFTER = "the process dies after the effect"
    LOST = "the request is lost"
    UNKNOWN = "the request arrives, the reply is lost"
    DELAYED = "the request arrives later, the process has given up waiting"
    SPLIT = "another owner starts while this one lives"
    FREEZE = "the process stands still for a while"
    TIMEOUT = "the coordinator gives up the open transaction"
    STOP = "the process is told to stop"
    REBALANCE = "the process stands by until it learns that the shard stays with it, true or not"
    COMMAND = "an operator sends a command"
    ROLLBACK = "an operator puts back a state that was stored before"
    BESIDE = "somebody puts back the records of an aborted transaction"
    CLOSE = "an operator closes the application"
    RETENTION = "retention takes queries, read or not"
    RECONFIGURE = "workers that start from now on have another configuration"
    ANEW = "a topic is made anew, all workers stopped"
    PAUSE = "an operator pauses datasets, and the process dies before it commits what it tested"
    DAMAGE = "a record of the state is damaged, until somebody mends it"
    DUPLICATE = "the request arrives twice, or queries and commands are written once more"


RARE = (Fault.ROLLBACK, Fault.BESIDE, Fault.RETENTION, Fault.ANEW, Fault.CLOSE)
"""What ends runs or budgets, and with them much of what could still go wrong: not in every history."""
HANDS_ON = (Fault.KILL_BEFORE, Fault.PAUSE, Fault.UNKNOWN, Fault.STOP, *[Fault.COMMAND] * 3)
"""An operator who reaches for the commands whenever a worker is in trouble."""
RECONFIGURING = (Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.UNKNOWN, Fault.STOP, *[Fault.RECONFIGURE] * 2)
"""One who applies another configuration instead."""

Faults = tuple[tuple[int, Fault], ...]


@dataclass(frozen=True)
class Script:
    """Everything that decides a history; ``form`` is the application, ``queries`` the number of queries written.

    Queries, values, batch sizes, schedule, noise and delays are of the seed. A fault has the number of its effect.
    """

    seed: int
    form: int
    queries: int
    faults: Faults

    @property
    def jumps(self) -> bool:
        """Whether queries come in transactions, some aborted, from producers and a log that leave offsets unused."""
        return self.seed % 3 == 0

    @classmethod
    def random(cls, seed: int, forms: int) -> Script:
        chance = random.Random(seed)
        faults, at = [], 0
        kinds = [kind for kind in Fault if kind not in RARE or chance.random() < 0.25]
        # Some histories are quiet and some are all faults; some have one kind only.
        if chance.random() < 0.3:
            kinds = chance.sample(kinds, chance.randint(1, 3))
        elif chance.random() < 0.4:
            kinds = [*chance.choice((HANDS_ON, RECONFIGURING))]
        mean = chance.choice((4, 8, 16, 40, 100))
        for _ in range(chance.randint(0, 14)):
            at += 1 + int(chance.expovariate(1 / mean))
            faults.append((at, chance.choice(kinds)))
        return cls(seed, chance.randrange(forms), chance.randint(5, 45), tuple(faults))

    def __str__(self) -> str:
        """Return the script as it can be run again."""
        faults = ", ".join(f"({at}, Fault.{fault.name})" for at, fault in self.faults)
        tail = "," if len(self.faults) == 1 else ""
        return f"Script({self.seed}, {self.form}, {self.queries}, ({faults}{tail}))"
