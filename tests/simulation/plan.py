"""What one run of the simulation does, made from its seed: how many calls, and which faults when; and what became of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

Kind = Literal[
    "kill_worker",
    "kill_beat",
    "kill_module",
    "kill_core",
    "kill_agent",
    "kill_gateway",
    "cut",
    "late",
    "lost_requests",
    "lost_answers",
    "freeze",
    "pause",
    "repeat",
]
WEIGHTS: dict[Kind, int] = {
    "kill_worker": 30,
    "kill_beat": 3,
    "kill_module": 2,
    "kill_core": 1,
    "kill_agent": 4,
    "kill_gateway": 3,
    "cut": 2,
    "late": 2,
    "lost_requests": 1,
    "lost_answers": 1,
    "freeze": 1,
    "pause": 2,
    "repeat": 2,
}
Life = Literal["jobs", "approvals", "returns", "clients", "canvases", "forgets"]
"""What lives beside the calls of agents."""

FORGETFUL_SHARE = 0.2
"""Of all seeds: in their runs Redis forgets what it has confirmed, and only calls are made."""

SHARES: dict[Life, float] = {
    "jobs": 0.02,
    "approvals": 0.02,
    "returns": 0.06,
    "clients": 0.03,
    "canvases": 0.01,
    "forgets": 0.0,
}
"""Of each at most so many as this share of the calls."""

_LONGEST_SECONDS = 5.0
_MOST_WRITES = 40


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        number: Its place in the seed's plan.
        at: Seconds after the first call.
        kind: What happens.
        member: The number of the worker, or module, that it happens to.
        seconds: For how long.
        write: At which of the worker's next writes it is killed, and how much of that still leaves it.
        part: 0 to 1.

    """

    number: int
    at: float
    kind: Kind
    member: int
    seconds: float
    write: int
    part: float


@dataclass(frozen=True)
class Plan:
    """One run. Plans with fewer faults or calls are smaller versions of a failing one."""

    seed: int
    calls: int = 300
    seconds: float = 20.0
    workers: int = 2
    faults: Sequence[Fault] = ()
    drawn: int = 12
    """How many faults the seed was asked for."""
    life: Mapping[Life, int] = field(default_factory=dict)
    """How many there are of each kind."""

    @classmethod
    def of(cls, seed: int, *, calls: int = 300, faults: int = 12) -> "Plan":
        """Make the plan of a seed."""
        dice = Random(f"plan {seed}")
        seconds, workers = dice.uniform(5, 25), dice.randint(1, 4)
        drawn = sorted(
            (_fault(dice, seconds, workers) for _ in range(dice.randint(faults // 2, faults + faults // 2))),
            key=lambda fault: fault.at,
        )
        numbered = tuple(replace(fault, number=number) for number, fault in enumerate(drawn))
        own = Random(f"life {seed}")  # so that the same faults happen with another life
        life = {kind: round(calls * own.uniform(0, share)) for kind, share in SHARES.items()}
        if own.random() < FORGETFUL_SHARE:
            life = dict.fromkeys(SHARES, 0) | {"returns": life["returns"], "forgets": own.randint(1, 3)}
        return cls(seed, calls, seconds, workers, numbered, faults, life)

    @property
    def command(self) -> str:
        """Return the command that plays it."""
        only = ",".join(str(fault.number) for fault in self.faults) or "none"
        life = ",".join(f"{kind}={count}" for kind, count in self.life.items() if count) or "none"
        options = f"--calls {self.calls} --faults {self.drawn} --workers {self.workers} --only {only} --life {life}"
        return f'make simulate SIMULATE="--first {self.seed} --runs 1 {options}"'

    def only(self, numbers: set[int]) -> "Plan":
        """Return it with these faults only."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.number in numbers))

    def with_workers(self, count: int) -> "Plan":
        """Return it with so many workers, to which the faults of the others happen."""
        faults = tuple(replace(fault, member=fault.member % count) for fault in self.faults)
        return replace(self, workers=count, faults=faults)

    def living(self, life: Mapping[Life, int]) -> "Plan":
        """Return it with so many of each kind of life, and none of the others."""
        return replace(self, life={**dict.fromkeys(SHARES, 0), **life})

    def without(self, places: range) -> "Plan":
        """Return it without some of its faults."""
        return replace(self, faults=tuple(fault for place, fault in enumerate(self.faults) if place not in places))


def _fault(dice: Random, seconds: float, workers: int) -> Fault:
    (kind,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
    return Fault(
        number=0,
        at=dice.uniform(0, seconds),
        kind=kind,
        member=dice.randrange(workers),
        seconds=dice.uniform(0.1, _LONGEST_SECONDS),
        write=dice.randint(1, _MOST_WRITES),
        part=dice.choice((0.0, 0.5, 1.0)),
    )


@dataclass
class Verdict:
    """What became of a plan.

    Attributes:
        violations: What did not hold; none of a good run.
        calls: How many calls ended.
        life: How many there were of each kind of life.
        kills: How many members were killed; `in_flight` counts those of workers that held calls then.
        digest: Of all ends and all that modules did, in their order: the same for two runs that went alike.

    """

    violations: list[str] = field(default_factory=list)
    calls: int = 0
    kills: int = 0
    in_flight: int = 0
    virtual_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    life: Counter[str] = field(default_factory=Counter)
    digest: str = ""
