"""What the fleet must reach beside the others, and whether it does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.reporting.results import Results, Spread
from benchmarks.systems import BY_NAME

_OURS = "toolfleet"
_CELERY = "celery_threads"
_CEILING = "raw_batched"
_ASYNCIO_PEERS = ("taskiq", "arq", "streaq", "saq")
_MOST_CPU = 0.6 * 0.61 / 1.26
"""Six tenths of what a call took when the fleet was first measured, 0.61 ms of all processes, beside saq's 1.26 in that run."""


@dataclass(frozen=True)
class Target:
    """One thing to reach: `measured` must be `at_least` or `at_most` so much."""

    what: str
    measured: Callable[[Results], Spread | None]
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, found: Spread) -> bool:
        """Judged by the median."""
        return (self.at_least is None or found.median >= self.at_least) and (
            self.at_most is None or found.median <= self.at_most
        )

    def wanted(self) -> str:
        """In words."""
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:.3g}"


def _against(other: str, workload: str, key: str = "rate", *, ours: str = _OURS) -> Callable[[Results], Spread | None]:
    return lambda results: results.ratio((ours, workload), (other, workload), key)


@dataclass(frozen=True)
class _ToBest:
    """The fleet's figure to that of the peer that is best at just that: of all peers, or of those that are named."""

    workload: str
    key: str
    among: Sequence[str] = ()

    def peer(self, results: Results) -> str | None:
        return results.best_peer(self.workload, self.key, self.among)

    def __call__(self, results: Results) -> Spread | None:
        peer = self.peer(results)
        return results.ratio((_OURS, self.workload), (peer, self.workload), self.key) if peer else None


def _memory(results: Results) -> Spread | None:
    return results.spread(_OURS, "held", "memory_mb")


def _client(results: Results) -> Spread | None:
    """Against whichever number of threads does best."""
    ways = {record["workload"] for record in results.records if record["workload"].startswith("client_")}
    found = [ratio for way in ways if (ratio := results.ratio((_OURS, "client"), (_OURS, way), "rate"))]
    return min(found, key=lambda ratio: ratio.median, default=None)


def _many_queues(results: Results) -> Spread | None:
    return results.ratio((_OURS, "queues_200"), (_OURS, "queues_1"), "rate")


TARGETS = (
    Target("W1, calls/s, to Celery with threads", _against(_CELERY, "W1"), at_least=5),
    Target("W2, calls/s, to Celery with threads", _against(_CELERY, "W2"), at_least=3),
    Target("W1, calls/s, to the fastest peer", _ToBest("W1", "rate"), at_least=2.5),
    Target("W2, calls/s, to the fastest peer", _ToBest("W2", "rate"), at_least=2),
    # To lists with our connections to modules there is no target: their call enters 138 Python functions, and one that a
    # ledger keeps from being done twice needs some 310 at least.
    Target("W1, calls/s, to bare Redis lists, batched", _against(_CEILING, "W1"), at_least=0.3),
    Target("W1, CPU of a call in all processes, to saq", _against("saq", "W1", "cpu.all"), at_most=_MOST_CPU),
    Target(
        "W2, calls/s, to bare Redis lists, batched, each 100 at a time",
        _against("raw_batched_100", "W2", ours="toolfleet_100"),
        at_least=0.6,
    ),
    Target("W2, calls/s, to bare Redis lists, batched, each all at once", _against(_CEILING, "W2"), at_least=0.6),
    Target("W1, worker CPU per call, to Celery with threads", _against(_CELERY, "W1", "cpu.worker"), at_most=0.25),
    Target(
        "W1, worker CPU per call, to the same without events",
        _against("toolfleet_silent", "W1", "cpu.worker"),
        at_most=1.1,
    ),
    Target(
        "W1, calls/s of an agent whose profile has all four middleware, to those without a profile",
        _against(_OURS, "W1", ours="toolfleet_guarded"),
        at_least=0.7,
    ),
    Target(
        "W1, calls/s with 1 % of calls traced, to those without traces",
        _against(_OURS, "W1", ours="toolfleet_traced"),
        at_least=0.95,
    ),
    Target(
        "W1, calls/s with metrics, to those without metrics",
        _against(_OURS, "W1", ours="toolfleet_metrics"),
        at_least=0.95,
    ),
    Target(
        "W1, calls/s as `toolfleet up` starts it, to the same without persistence",
        _against("toolfleet_shipped_memory", "W1", ours="toolfleet_shipped"),
        at_least=0.6,
    ),
    Target("W3, median latency, to the fastest peer", _ToBest("W3", "p50_ms"), at_most=0.95),
    Target("W3, p99, to the best peer", _ToBest("W3", "p99_ms"), at_most=1),
    Target("W3, median latency, to bare Redis lists, batched", _against(_CEILING, "W3", "p50_ms"), at_most=1.5),
    Target("W3, median latency, to a new httpx client a call", _against("inline_seed", "W3", "p50_ms"), at_most=0.125),
    Target("W4, publishes/s, to the fastest peer", _ToBest("W4", "rate"), at_least=1.1),
    Target("W5, p99 of calls that come by chance, to the best peer", _ToBest("W5", "p99_ms"), at_most=1 / 3),
    Target("Redis 2.8 ms away, calls/s, to Celery with threads", _against(_CELERY, "far"), at_least=10),
    Target("5,000 calls of 10 s in one process, MB resident", _memory, at_most=250),
    Target("client alone, calls/s, to asyncio.to_thread(get)", _client, at_least=4),
    Target("W1, two worker processes to one", _against(_OURS, "W1", ours="toolfleet_2"), at_least=1.6),
    Target(
        "W2, two worker processes to one, each 40 at a time",
        _against("toolfleet_40", "W2", ours="toolfleet_40_2"),
        at_least=1.6,
    ),
    Target("cold start, to the fastest asyncio peer", _ToBest("cold", "cold_seconds", _ASYNCIO_PEERS), at_most=1),
    Target("cold start, to Celery with threads", _against(_CELERY, "cold", "cold_seconds"), at_most=0.4),
    Target("W1, 200 queues to one", _many_queues, at_least=0.8),
)


def rows(results: Results) -> Iterator[tuple[str, str, str, str]]:
    """Each target: what, wanted, measured, and whether it is met."""
    for target in TARGETS:
        found = target.measured(results)
        what = target.what
        if isinstance(target.measured, _ToBest) and (peer := target.measured.peer(results)):
            what += f" ({BY_NAME[peer].title})"
        if found is None:
            yield what, target.wanted(), "not measured", "-"
        else:
            measured = f"{found.median:.3g} ({found.low:.3g} to {found.high:.3g})"
            yield what, target.wanted(), measured, "met" if target.is_met(found) else "**not met**"
