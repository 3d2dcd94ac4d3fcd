"""What a call costs Redis, by script: `python -m benchmarks.features.redis_time`.

Redis counts how long scripts take inside it. Which of them takes which part is asked in a second window, in which Redis notes each:
that makes all of them slower, by about as much. What it takes to read commands and to write replies is in the process's CPU only.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.environments import install
from benchmarks.lengths import FULL
from benchmarks.stage import Stage, stages
from benchmarks.systems import OURS
from benchmarks.trial import running
from benchmarks.work import INSTANT, WAIT_50_MS
from toolfleet_registry.redis.script import Script
from toolfleet_tasks.lua.files import FILES

_SECONDS = 2.0
_MOST_NOTED = 1_000_000
_WORKLOADS: dict[str, dict[str, Any]] = {
    "W1": {"tools": [INSTANT], "in_flight": 200, "warm": 100},
    "W2": {"tools": [WAIT_50_MS], "in_flight": 500, "warm": 100},
    "W3": {"tools": [INSTANT], "in_flight": 1, "warm": 20},
}


@dataclass(frozen=True)
class Cost:
    """Of one script: how often it ran for a call, and its microseconds for a call."""

    name: str
    times: float
    microseconds: float


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workload", choices=_WORKLOADS, default="W1")
    options.add_argument("--seconds", type=float, default=_SECONDS)
    chosen = options.parse_args()
    install("module")
    with tempfile.TemporaryDirectory() as folder, stages(Path(folder)) as (stage, _):
        costs, cpu = _measure(stage, _WORKLOADS[chosen.workload], chosen.seconds)
    print(f"What a call of {chosen.workload} costs Redis:\n")
    print("| script | times a call | us a call |\n|---|---:|---:|")
    for cost in costs:
        print(f"| {cost.name} | {cost.times:.2f} | {cost.microseconds:.1f} |")
    print(f"| all of them | | {sum(cost.microseconds for cost in costs):.1f} |")
    print(f"| CPU of the process | | {cpu:.1f} |")


def _measure(stage: Stage, order: Mapping[str, Any], seconds: float) -> tuple[list[Cost], float]:
    """The costs, most expensive first, and the process's CPU (us) for a call."""
    with running(OURS, stage, FULL.trial) as trial, Redis.from_url(stage.redis_url) as redis:
        producer = trial.start_producer()
        trial.first_call(producer)
        before = _script_time(redis)
        window = trial.window(producer, seconds=seconds, **order)
        spent = (_script_time(redis) - before) / window["calls"]
        redis.config_set("slowlog-max-len", _MOST_NOTED)
        redis.slowlog_reset()
        redis.config_set("slowlog-log-slower-than", 0)
        calls = trial.window(producer, seconds=seconds, **order)["calls"]
        redis.config_set("slowlog-log-slower-than", -1)
        noted: Any = redis.slowlog_get(_MOST_NOTED)
    return _costs(noted, calls, spent), window["cpu"]["redis"] * 1000


def _script_time(redis: "Redis") -> float:
    """Microseconds so far."""
    stats: Any = redis.info("commandstats")
    return sum(float(stats[kind]["usec"]) for kind in ("cmdstat_eval", "cmdstat_evalsha") if kind in stats)


def _costs(noted: Iterable[Mapping[str, Any]], calls: int, spent: float) -> list[Cost]:
    """What stands in Redis's log, so that the sum is what was `spent` on a call."""
    names = {FILES.script(name).digest: name for name in FILES.sources if _is_whole(FILES.script(name))}
    times, logged = Counter[str](), Counter[str]()
    for each in noted:
        words = bytes(each["command"]).decode(errors="replace").split(" ", 2)
        if words[0] in {"EVAL", "EVALSHA"}:
            name = names.get(words[1], "others")
            times[name] += 1
            logged[name] += int(each["duration"])
    return [Cost(name, times[name] / calls, spent * part / logged.total()) for name, part in logged.most_common()]


def _is_whole(script: Script) -> bool:
    """Whether it is one that runs, and no part of others."""
    try:
        return bool(script.digest)
    except (KeyError, ValueError):
        return False


if __name__ == "__main__":
    main()
