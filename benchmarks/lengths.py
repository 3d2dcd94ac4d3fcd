"""How long is measured: for figures, or for a look."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lengths:
    """Seconds in which calls are begun; a window ends when the last of them has."""

    rounds: int
    throughput: float
    latency: float
    publishing: float
    trial: float
    """A trial that takes longer has failed."""
    total: float
    """What is not begun by then is left out."""
    quiet: float
    """How long to wait at most, before a trial, for the machine to have nothing else to do."""
    first: frozenset[str] = frozenset()
    """Jobs that no lack of time shall leave out."""
    systems: frozenset[str] | None = None
    """None: all."""
    workloads: frozenset[str] | None = None
    """Of `WORKLOADS`, and `cold`. None: all that a system has."""
    far: tuple[str, ...] = ("toolfleet", "celery_threads", "dramatiq", "huey", "arq", "raw_batched")
    queues: tuple[int, ...] = (1, 10, 50, 200)
    crowd: float = 10.0
    """Of one user's calls, one after the other, beside another's thousands: for a p99 there must be some hundred."""
    open: tuple[str, ...] = (
        "toolfleet",
        "celery_threads",
        "taskiq",
        "arq",
        "saq",
        "dramatiq",
        "huey",
        "raw_batched",
    )
    """Who is measured with calls that come when they are due, whatever has become of those before."""
    due: float = 2.0
    """Seconds in which such calls are due."""
    held_calls: int = 5000
    threads: tuple[int, ...] = field(default=(6, 200))
    """Of asyncio.to_thread: Python's default on two cores, and as many as calls."""


FULL = Lengths(rounds=3, throughput=2.0, latency=1.5, publishing=1.0, trial=90, total=3600, quiet=15)

SHORT = Lengths(
    rounds=1,
    throughput=1.0,
    latency=0.5,
    publishing=0.3,
    trial=40,
    total=135,
    quiet=0.5,
    first=frozenset(
        {
            "toolfleet",
            "celery_threads",
            "raw_batched",
            "dramatiq",
            "huey",
            "far:toolfleet",
            "far:celery_threads",
            "held",
        }
    ),
    systems=frozenset(
        {
            "toolfleet",
            "toolfleet_2",
            "celery_threads",
            "taskiq",
            "arq",
            "saq",
            "dramatiq",
            "huey",
            "inline_seed",
            "inline_aiohttp",
            "raw_batched",
            "toolfleet_100",
            "toolfleet_40",
            "toolfleet_40_2",
            "raw_batched_100",
        }
    ),
    far=("toolfleet", "celery_threads"),
    queues=(1, 200),
    open=(),
    threads=(200,),
)
