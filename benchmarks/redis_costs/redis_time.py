"""What a call costs Redis, by script and command: `python -m benchmarks.redis_costs.redis_time`.

Redis counts how long commands take inside it. Which scripts take which part is asked in a second window, in which Redis notes each
command: that makes all of them slower, by about as much. To read commands and write replies is in the process's CPU only.
"""

import argparse
import re
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
from toolfleet_tasks.scripts import FILES

TARGET_MICROSECONDS = 50
"""Of the process's CPU, for a call of W1."""

_SECONDS = 4.0
_MOST_NOTED = 1_000_000
_SHOWN_BYTES = 128  # of each word of a command that Redis notes
_IN_SCRIPT = b"?:0"  # in the place of a client's address: the command is part of a script, whose time has it already
_CUT = re.compile(rb"EVAL (.{%d})\.\.\. \((\d+) more bytes\)" % _SHOWN_BYTES, re.DOTALL)
_SCRIPTS = ("eval", "evalsha")
_OTHERS = "other scripts"
_WORKLOADS: dict[str, dict[str, Any]] = {
    "W1": {"tools": [INSTANT], "in_flight": 200, "warm": 100},
    "W2": {"tools": [WAIT_50_MS], "in_flight": 500, "warm": 100},
    "W3": {"tools": [INSTANT], "in_flight": 1, "warm": 20},
}


@dataclass(frozen=True)
class Cost:
    """Of one script or command: how often it ran for a call, and its microseconds for a call."""

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
        found, cpu = _measure(stage, _WORKLOADS[chosen.workload], chosen.seconds)
    print(f"What a call of {chosen.workload} costs Redis:\n\n{table(found, cpu)}")


def table(found: Iterable[Cost], cpu: float) -> str:
    """The costs as Markdown, with their sum and the process's CPU (us a call) beside the target."""
    found = list(found)
    inside = sum(cost.microseconds for cost in found)
    verdict = "met" if cpu <= TARGET_MICROSECONDS else "not met"
    return "\n".join(
        (
            "| script or command | times a call | us a call |\n|---|---:|---:|",
            *(f"| {cost.name} | {cost.times:.2f} | {cost.microseconds:.1f} |" for cost in found),
            f"| all of them | | {inside:.1f} |",
            f"| reading, writing and the rest | | {cpu - inside:.1f} |",
            f"| CPU of the process (at most {TARGET_MICROSECONDS}: {verdict}) | | {cpu:.1f} |",
        )
    )


def _measure(stage: Stage, order: Mapping[str, Any], seconds: float) -> tuple[list[Cost], float]:
    """The costs, most expensive first, and the process's CPU (us) for a call."""
    with running(OURS, stage, FULL.trial) as trial, Redis.from_url(stage.redis_url) as redis:
        producer = trial.start_producer()
        trial.first_call(producer)
        before = _times(redis)
        window = trial.window(producer, seconds=seconds, **order)
        spent = {name: (time - before.get(name, 0)) / window["calls"] for name, time in _times(redis).items()}
        redis.config_set("slowlog-max-len", _MOST_NOTED)
        redis.slowlog_reset()
        redis.config_set("slowlog-log-slower-than", 0)
        calls = trial.window(producer, seconds=seconds, **order)["calls"]
        redis.config_set("slowlog-log-slower-than", -1)
        noted: Any = redis.slowlog_get(_MOST_NOTED)
    return costs(noted, calls, spent), window["cpu"]["redis"] * 1000


def _times(redis: "Redis") -> dict[str, float]:
    """Microseconds so far, by command; what scripts do is in theirs and in each command's own."""
    stats: Any = redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): float(found["usec"]) for name, found in stats.items()}


def costs(noted: Iterable[Mapping[str, Any]], calls: int, spent: Mapping[str, float]) -> list[Cost]:
    """What stands in Redis's log, so that the sum for each command is what was `spent` (us) on it for a call."""
    times, logged, in_all = Counter[str](), Counter[str](), Counter[str]()
    commands: dict[str, str] = {}
    names = _names()
    for each in noted:
        text, took = bytes(each["command"]), int(each["duration"])
        command = text.partition(b" ")[0].decode().lower()
        kind = _SCRIPTS[0] if command in _SCRIPTS else command
        in_all[kind] += took
        if bytes(each["client_address"]) != _IN_SCRIPT:
            name = _script_in(text, names) if command in _SCRIPTS else command.upper()
            times[name] += 1
            logged[name] += took
            commands[name] = kind
    scripts = sum(spent.get(kind, 0.0) for kind in _SCRIPTS)
    found = []
    for name, part in logged.items():
        kind = commands[name]
        whole = scripts if kind == _SCRIPTS[0] else spent.get(kind, 0.0)
        found.append(Cost(name, times[name] / calls, whole * part / max(in_all[kind], 1)))
    return sorted(found, key=lambda cost: -cost.microseconds)


def _names() -> dict[tuple[bytes, int], str]:
    """The scripts by how Redis notes them: by digest, or by the beginning of the text and how much more there was."""
    found = dict[tuple[bytes, int], str]()
    for script in map(FILES.script, FILES.names):
        text = script.text.encode()
        found[script.digest.encode(), 0] = found[text[:_SHOWN_BYTES], len(text) - _SHOWN_BYTES] = script.name
    return found


def _script_in(text: bytes, names: Mapping[tuple[bytes, int], str]) -> str:
    cut = _CUT.match(text)
    key = (cut[1], int(cut[2])) if cut else (text.split(b" ", 2)[1], 0)
    return names.get(key, _OTHERS)


if __name__ == "__main__":
    main()
