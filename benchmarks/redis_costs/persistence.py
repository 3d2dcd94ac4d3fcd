"""What each way costs in which Redis keeps its data: `python -m benchmarks.redis_costs.persistence`.

W1 and W3 of one worker and one agent, each way once a round, in another order each time. The last way is that of `toolfleet up`.
"""

import argparse
import random
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from redis import Redis

from benchmarks import measures
from benchmarks.environments import HERE, compile_own_code, install
from benchmarks.lengths import FULL
from benchmarks.reporting.results import Results, Spread
from benchmarks.stage import Stage, listening, stages
from benchmarks.systems import OURS
from toolfleet_cli.local.redis_server import free_port, redis_command

_ROUNDS = 3
_WORKLOADS = ("W1", "W3")


@dataclass(frozen=True)
class Way:
    """How Redis keeps its data: what `options` change of how `toolfleet up` runs it."""

    name: str
    title: str
    options: Sequence[str] = ()
    is_saved: bool = False  # a snapshot is written while it is measured


WAYS = (
    Way("none", "no persistence", ("--appendonly", "no")),
    Way("snapshot", "snapshots (RDB), while one is written", ("--appendonly", "no"), is_saved=True),
    Way("everysec", "append-only file, `appendfsync everysec`", ("--appendfsync", "everysec")),
    Way("always", "append-only file, `appendfsync always`"),
)


def main() -> None:
    """Measure and print; the table is kept in `results/persistence.md`."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=_ROUNDS)
    rounds = options.parse_args().rounds
    install("module")
    compile_own_code()
    with tempfile.TemporaryDirectory() as folder, stages(Path(folder)) as (stage, _):
        results = Results(Path(folder) / "records.jsonl")
        for results.round in range(rounds):
            for way in random.sample(WAYS, len(WAYS)):
                _measure(way, stage, results)
                print(f"{results.round + 1} {way.title}", flush=True)
        text = table(results)
    print("\n" + text)
    if rounds >= _ROUNDS:
        (HERE / "results" / "persistence.md").write_text(text + "\n")


def table(results: Results) -> str:
    """The figures as Markdown: medians over the rounds; ratios within a round."""
    lines = [
        "| Redis keeps | W1, calls/s | to none | one call, p50 ms | p99 ms | Redis's CPU a call, ms |",
        "|---|---:|" + "---:|" * 4,
    ]
    for way in WAYS:
        rate, cpu = (results.spread(way.name, "W1", key) for key in ("rate", "cpu.redis"))
        half, most = (results.spread(way.name, "W3", key) for key in ("p50_ms", "p99_ms"))
        to_none = results.ratio((way.name, "W1"), ("none", "W1"), "rate")
        cells = (_shown(rate, 0), _shown(to_none, 2), _shown(half, 2), _shown(most, 2), _shown(cpu, 3))
        lines.append(f"| {way.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} to {spread.high:,.{digits}f})"


def _measure(way: Way, stage: Stage, results: Results) -> None:
    with _kept(way, stage) as own:
        system = replace(OURS, workloads=_WORKLOADS)
        for record in measures.workloads(system, own, FULL):
            if record["workload"] in _WORKLOADS:
                results.add({"system": way.name, **record})
            elif way.is_saved:  # before W1 begins
                with Redis.from_url(own.redis_url) as redis:
                    redis.bgsave()


@contextmanager
def _kept(way: Way, stage: Stage) -> Generator[Stage]:
    """The stage with a Redis that keeps its data so."""
    port = free_port()
    with tempfile.TemporaryDirectory(dir=stage.folder) as folder:
        command: list[str | Path] = [*redis_command(Path(folder), port), *way.options]
        with listening(command, port, stage.folder) as pid:
            yield replace(stage, redis_port=port, redis_pid=pid)


if __name__ == "__main__":
    main()
