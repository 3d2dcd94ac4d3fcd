"""The results as Markdown."""

import platform
import sys
import time
from collections.abc import Iterable, Iterator

import psutil

from benchmarks.interpreters import is_there
from benchmarks.reporting import targets
from benchmarks.reporting.results import Results, Spread
from benchmarks.systems import SYSTEMS
from benchmarks.trial import LOG_FOLLOWS

_CELERY = "celery_threads"
_CEILING = "raw_batched"
_CPU = ("worker", "producer", "redis", "module")


def markdown(results: Results, command: str, redis_version: str) -> str:
    """The whole report."""
    parts = [
        "# Benchmark\n\n" + _about(results, command, redis_version),
        "## Targets\n\n" + _table(("what", "wanted", "measured (lowest to highest)", ""), targets.rows(results)),
        "## W1: module 0 ms, 200 in flight\n\n" + _throughput(results, "W1"),
        "## W2: module 50 ms, 500 in flight\n\n" + _throughput(results, "W2"),
        "## W3: one call at a time\n\n" + _latency(results),
        "## W4: publishing only; cold start: worker's start to a queued call's result\n\n" + _starts(results),
        "## W5: calls that come by chance, at 0.7 of what the fastest peer does in W1\n\n" + _open_loop(results),
        "## Redis 2.8 ms away (W1)\n\n" + _throughput(results, "far") + _proxied(results),
        "## One fleet, other shapes\n\n" + _table(("what", "median (lowest to highest)"), _shapes(results)),
    ]
    if results.failures:
        failed = "\n".join(f"- {name}: `{_line(reason)}`" for name, reason in results.failures.items())
        parts.append(f"## Failed or left out\n\n{failed}")
    return "\n\n".join(parts) + "\n"


def _about(results: Results, command: str, redis_version: str) -> str:
    others = Spread.of([record["other_cores"] for record in results.records if "other_cores" in record])
    rounds = len({record["round"] for record in results.records})
    return (
        f"`{command}`, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {rounds} rounds. {_processor()}, "
        f"{psutil.cpu_count()} cores for producer, worker, Redis and module together; Python "
        f"{platform.python_version()}, Redis {redis_version} without persistence. Medians over rounds, lowest to "
        f"highest in brackets; x is a ratio within a round, then the median. Absolute figures depend on the machine "
        f"and its hour: compare ratios. Other programs used {others.median if others else 0:.2f} cores meanwhile "
        f"(at most {others.high if others else 0:.2f})."
    )


def _throughput(results: Results, workload: str) -> str:
    head = ("system", "calls/s", "x Celery threads", "x bare lists", *(f"CPU {name}" for name in _CPU), "MB")
    return _table(head, _throughput_rows(results, workload)) + "\n\nCPU: seconds per 1,000 calls. MB: the workers'."


def _throughput_rows(results: Results, workload: str) -> Iterator[tuple[str, ...]]:
    for system in SYSTEMS:
        rate = results.spread(system.name, workload, "rate")
        if rate is None:
            if workload in system.workloads and not is_there(system.environment):
                yield system.title, "not on this machine", *("-" for _ in range(len(_CPU) + 3))
            continue
        cpu = (_median(results.spread(system.name, workload, f"cpu.{name}"), 2) for name in _CPU)
        memory = _median(results.spread(system.name, workload, "memory_mb")) if system.worker else "-"
        yield system.title, _spread(rate), *_times(results, system.name, workload, "rate"), *cpu, memory


def _proxied(results: Results) -> str:
    """A proxy near one core is a limit of its own: who asks for 200 results every 10 ms gets there."""
    cores = {system.title: results.spread(system.name, "far", "proxy_cores") for system in SYSTEMS}
    used = ", ".join(f"{title} {spread.median:.2f}" for title, spread in cores.items() if spread)
    return f" Cores that the delaying proxy used: {used}." if used else ""


def _latency(results: Results) -> str:
    head = ("system", "p50 ms", "p95 ms", "p99 ms", "p50 x Celery threads", "p50 x bare lists")
    rows = []
    for system in SYSTEMS:
        if spread := results.spread(system.name, "W3", "p50_ms"):
            tail = (_median(results.spread(system.name, "W3", key), 2) for key in ("p95_ms", "p99_ms"))
            rows.append((system.title, _spread(spread, 2), *tail, *_times(results, system.name, "W3", "p50_ms")))
    return _table(head, rows)


def _open_loop(results: Results) -> str:
    """What began its calls late, or had not done them when the last was due, could not keep up: its latency grows with the time."""
    head = ("system", "calls due/s", "done/s", "p50 ms", "p95 ms", "p99 ms", "begun late, p99 ms", "done in time")
    rows = []
    for system in SYSTEMS:
        if spread := results.spread(system.name, "W5", "p99_ms"):
            due, done, half, most = (
                _median(results.spread(system.name, "W5", key), digits)
                for key, digits in (("due", 0), ("rate", 0), ("p50_ms", 2), ("p95_ms", 2))
            )
            late = _median(results.spread(system.name, "W5", "late_p99_ms"), 2)
            in_time = results.spread(system.name, "W5", "in_time")
            share = f"{in_time.median:.0%}" if in_time else "-"
            rows.append((system.title, due, done, half, most, _spread(spread, 2), late, share))
    return _table(head, rows) + (
        "\n\nLatency counts from the time that a call is due to its result. Done in time: the share of calls that had their "
        "results when the last one was due; who is far below 100 % does not keep up, and would wait ever longer."
    )


def _starts(results: Results) -> str:
    head = ("system", "publishes/s", "x Celery", "cold start s", "x Celery threads")
    rows = []
    for system in SYSTEMS:
        published = results.spread(system.name, "W4", "rate")
        cold = results.spread(system.name, "cold", "cold_seconds")
        if published or cold:
            faster = results.ratio((system.name, "W4"), (_CELERY, "W4"), "rate")
            slower = results.ratio((system.name, "cold"), (_CELERY, "cold"), "cold_seconds")
            rows.append((system.title, _spread(published), _median(faster, 2), _spread(cold, 2), _median(slower, 2)))
    return _table(head, rows)


def _shapes(results: Results) -> Iterator[tuple[str, str]]:
    """What is measured of our fleet alone."""
    for workload in dict.fromkeys(record["workload"] for record in results.records):
        name, _, number = workload.partition("_")
        if name == "queues":
            yield f"{number} queues in one worker: calls/s", _of(results, workload, "rate")
        elif name == "client":
            way = f"asyncio.to_thread(get), {number} threads" if number else "our client"
            yield f"calls that are answered at once, made by {way}: calls/s", _of(results, workload, "rate")
        elif name == "mixed":
            slow = "saturated" if number == "busy" else "idle"
            yield f"fast lane while the slow lane is {slow}: p50 ms", _of(results, workload, "p50_ms", 2)
            yield f"fast lane while the slow lane is {slow}: p99 ms", _of(results, workload, "p99_ms", 2)
        elif name == "crowd":
            others = "10,000 calls of another user wait" if number == "all" else "nobody else calls"
            yield f"one user's calls of 50 ms while {others}: p50 ms", _of(results, workload, "p50_ms", 1)
            yield f"one user's calls of 50 ms while {others}: p99 ms", _of(results, workload, "p99_ms", 1)
        elif name == "held":
            yield (
                "calls of 10 s in one process: at the same time, as the module saw it",
                _of(results, "held", "at_once"),
            )
            yield "… seconds until all had returned", _of(results, "held", "elapsed", 1)
            yield "… MB resident before", _of(results, "held", "before_mb")
            yield "… MB resident at the height", _of(results, "held", "memory_mb")
            yield "… CPU seconds of the worker", _of(results, "held", "worker_cpu", 2)


def _of(results: Results, workload: str, key: str, digits: int = 0) -> str:
    return _spread(results.spread("toolfleet", workload, key), digits)


def _times(results: Results, system: str, workload: str, key: str) -> Iterator[str]:
    for base in (_CELERY, _CEILING):
        yield _median(results.ratio((system, workload), (base, workload), key), 2)


def _spread(spread: Spread | None, digits: int = 0) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} to {spread.high:,.{digits}f})"


def _median(spread: Spread | None, digits: int = 0) -> str:
    return "-" if spread is None else f"{spread.median:,.{digits}f}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(text: str) -> str:
    """The end of what the producer said; what the workers wrote is on the terminal."""
    return " ".join(text.partition(LOG_FOLLOWS)[0].split())[-200:].replace("`", "'")


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as file:  # noqa: PTH123 - no file that anybody has put there
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
