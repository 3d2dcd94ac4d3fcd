"""Measure all systems in rounds, and write tables and a picture: `python -m benchmarks [--short] [--busy N] [--only NAME …] [--workloads NAME …]`.

`python -m benchmarks PART …` runs one of the other benchmarks, with its own options.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import measures
from benchmarks.environments import HERE, compile_own_code, is_ready
from benchmarks.interpreters import is_there
from benchmarks.lengths import FULL, SHORT, Lengths
from benchmarks.machine import busy, wait_for_quiet
from benchmarks.reporting import picture, report
from benchmarks.reporting.results import Results
from benchmarks.stage import Stage, stages
from benchmarks.systems import BY_NAME, OURS, SYSTEMS, WORKLOADS, System
from benchmarks.trial import Record, TrialFailed

_RESULTS = HERE / "results"

PARTS = {
    "install": "benchmarks.environments",
    "catalog": "benchmarks.features.catalog",
    "counters": "benchmarks.counters",
    "folders": "benchmarks.features.folders",
    "gateway": "benchmarks.features.gateway",
    "hosts": "benchmarks.features.hosts",
    "jobs": "benchmarks.features.jobs",
    "persistence": "benchmarks.redis_costs.persistence",
    "pii": "benchmarks.features.personal_data",
    "programs": "benchmarks.features.programs",
    "redis": "benchmarks.redis_costs.redis_time",
    "tool_search": "benchmarks.features.tool_search",
    "tool_tasks": "benchmarks.features.tool_tasks",
    "zoo": "benchmarks.features.zoo",
}
"""The benchmarks that measure no peers, and `install`, which makes the peers' environments."""


@dataclass(frozen=True)
class Job:
    """Something to measure once a round."""

    name: str
    system: str
    measure: Callable[[], Iterator[Record]]
    is_last: bool = False
    """It builds upon what others have measured in the same round."""


def jobs(near: Stage, distant: Stage, lengths: Lengths, results: Results) -> list[Job]:
    """What there is to measure."""
    there = [system for system in SYSTEMS if is_there(system.environment)]
    chosen = [system for system in there if lengths.systems is None or system.name in lengths.systems]
    here: dict[str, Any] = {"stage": near, "lengths": lengths}
    return [
        *(Job(system.name, system.name, partial(_way_of(system), system, **here)) for system in chosen),
        *(Job(f"far:{name}", name, partial(measures.far, BY_NAME[name], distant, lengths)) for name in lengths.far),
        *(Job(f"queues:{count}", OURS.name, partial(measures.queues, count, **here)) for count in lengths.queues),
        *(
            Job(ask.__name__, OURS.name, partial(ask, **here))
            for ask in (measures.held, measures.mixed, measures.crowd, measures.clients)
        ),
        *(
            Job(f"open:{name}", name, partial(measures.open_loop, BY_NAME[name], results=results, **here), is_last=True)
            for name in lengths.open
        ),
    ]


def _way_of(system: System) -> Callable[..., Iterator[Record]]:
    return measures.shipped if system.is_shipped else measures.workloads


def pick(todo: list[Job], only: Sequence[str], near: Stage, lengths: Lengths) -> list[Job]:
    """The jobs of these names; with an open loop, also what its load is a share of: W1 of its peers."""
    picked = [job for job in todo if job.name in only]
    if any(job.is_last for job in picked):
        for name in lengths.open:
            if BY_NAME[name].kind == "peer" and name not in only:
                alone = replace(BY_NAME[name], workloads=("W1",))
                picked.append(Job(name, name, partial(measures.workloads, alone, near, lengths)))
    return picked


def measure_all(todo: list[Job], results: Results, lengths: Lengths) -> None:
    """Every job once a round, in another order each time, so that a slow minute of the machine hits everybody alike."""
    give_up_at = time.monotonic() + lengths.total
    for number in range(lengths.rounds):
        results.round = number
        shuffled = random.sample(todo, len(todo))
        for job in sorted(shuffled, key=lambda job: (job.is_last, job.name not in lengths.first)):
            if time.monotonic() > give_up_at:
                results.failures[job.name] = "left out: no time left"
                continue
            wait_for_quiet(lengths.quiet)
            _measure(job, number, results)


def _measure(job: Job, number: int, results: Results) -> None:
    began_at = time.monotonic()
    said = []
    try:
        for record in job.measure():
            results.add({"system": job.system, **record})
            said.append(_brief(record))
    except TrialFailed as exc:
        results.failures[job.name] = str(exc)
        said.append(f"FAILED: {exc}")
    except Exception as exc:  # noqa: BLE001 - one system's trouble must not take the others' figures with it
        results.failures[job.name] = repr(exc)
        said.append(f"FAILED: {exc!r}")
    print(f"{number + 1} {job.name} ({time.monotonic() - began_at:.0f} s): {', '.join(said)}", flush=True)


def _brief(record: Record) -> str:
    workload = record["workload"]
    if workload == "cold":
        return f"cold {record['cold_seconds']:.2f} s"
    if workload == "held":
        return f"held {record['memory_mb']:.0f} MB"
    latency = f", p50 {record['p50_ms']:.2f} ms" if workload in {"W3", "mixed_idle", "mixed_busy"} else ""
    if workload == "W5":
        latency = f" of {record['due']:,.0f}, p50 {record['p50_ms']:.2f} ms, p99 {record['p99_ms']:.2f} ms"
    return f"{workload} {record['rate']:,.0f}/s{latency}"


def main() -> None:
    """Read the options, measure, report."""
    if sys.argv[1:] and sys.argv[1] in PARTS:
        _become(PARTS[sys.argv[1]], sys.argv[2:])
    chosen = _read_options()
    lengths = SHORT if chosen.short else FULL
    lengths = replace(lengths, rounds=chosen.rounds or lengths.rounds)
    if chosen.only:
        lengths = replace(lengths, systems=None, open=FULL.open)
    if chosen.workloads:
        lengths = replace(lengths, workloads=frozenset(chosen.workloads))
    if chosen.busy:
        lengths = replace(lengths, quiet=0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in [name for name in os.environ if name.startswith(("TOOLFLEET_", "OTEL_"))]:
        del os.environ[name]  # each system states its own
    _check_environments()
    compile_own_code()
    _RESULTS.mkdir(exist_ok=True)
    is_part = bool(chosen.only or chosen.rounds or chosen.workloads or chosen.busy)
    name = "part" if is_part else "short" if chosen.short else "full"
    results = Results(_RESULTS / f"{name}.jsonl")
    with busy(chosen.busy):
        version = _measured(results, lengths, chosen.only)
    command = f'make bench BENCH="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else "make bench"
    text = report.markdown(results, command, version)
    (_RESULTS / f"{name}.md").write_text(text)
    print("\n" + text)
    if picture.draw(results, _RESULTS / f"{name}.png"):
        print(f"{_RESULTS / name}.png")


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run another benchmark in the place of this process, with what tests have of hostile servers in reach."""
    tests = str(HERE.parent / "tests")
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], {**os.environ, "PYTHONPATH": tests})  # noqa: S606


def _read_options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="The fleet and its peers, side by side.",
        epilog=f"Or one of: {', '.join(PARTS)}, with its own options.",
    )
    options.add_argument("--short", action="store_true", help="a look: one round, fewer systems, three minutes")
    options.add_argument("--rounds", type=int, help="how often everything is measured")
    options.add_argument(
        "--busy", type=int, default=0, metavar="N", help="beside N processes that do nothing but compute"
    )
    options.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"of {', '.join(BY_NAME)}; far:NAME, queues:N, open:NAME, held, mixed, crowd, clients",
    )
    options.add_argument(
        "--workloads", nargs="+", choices=("cold", *WORKLOADS), help="of each system only these; cold is the cold start"
    )
    return options.parse_args()


def _measured(results: Results, lengths: Lengths, only: Sequence[str] | None) -> str:
    """Measure everything, or these jobs only; returns the version of Redis."""
    with tempfile.TemporaryDirectory() as folder, stages(Path(folder)) as (near, distant):
        version = near.redis_version()
        todo = jobs(near, distant, lengths, results)
        if only:
            todo = pick(todo, only, near, lengths)
        try:
            measure_all(todo, results, lengths)
        except KeyboardInterrupt:
            print("interrupted: this is what there is")
    return version


def _check_environments() -> None:
    needed = {"module", "plot", *(system.environment for system in SYSTEMS if is_there(system.environment))}
    missing = sorted(name for name in needed if not is_ready(name))
    if missing:
        sys.exit(f"Not built, or of other versions: {', '.join(missing)}. Run `make bench BENCH=install`.")


if __name__ == "__main__":
    main()
