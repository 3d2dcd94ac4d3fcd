"""Counts what one call costs, in numbers that do not depend on how busy the machine is: `python -m benchmarks.counters`.

Each pass is a fresh fleet that makes a fixed number of calls after a warm-up:

- `calls`: Python functions entered and resumed, C functions called, how many different ones that are, and how much bytecode;
  turns of asyncio's loop
- `memory`: allocations, counted by a small library in front of `malloc` (needs `cc`)
- `system`: system calls (needs `strace`, and the right to trace)
- `start`: functions entered and modules loaded from a process's start to the first result
- `instructions`: machine instructions, by callgrind (needs `valgrind`; is not made unless it is named)

Redis's own counts come with `calls`. They repeat within about 4 %: in the worker, new connections to the module fall into the window.
"""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

from benchmarks.environments import ENVIRONMENTS, HERE, ROOT, install, is_ready, python_of
from benchmarks.interpreters import environment_of
from benchmarks.stage import Stage, stages
from benchmarks.systems import BY_NAME, OURS, System
from benchmarks.trial import Producer, Trial, TrialFailed, running
from benchmarks.work import INSTANT

PASSES = ("calls", "memory", "system", "start", "instructions")

_PYTHON = (3, 12)  # the first with sys.monitoring
_ROLES = ("agent", "worker")
_SECONDS = 900.0
_WARM_CALLS = 500
_TURN = ":BaseEventLoop._run_once"
_OFTEN = 10  # a function is one of a call's if one call in so many enters it
_ASK_SECONDS = 120.0
_ATTACH_SECONDS = 2.0  # strace says nothing when it has attached
_VALGRIND = "valgrind"
_IN_FLIGHT = {"W1": 200, "W3": 1, "W4": 200}
_SLOW = {"in_flight": 10, "calls": 120}  # under callgrind a call takes a second

_MALLOC = """
#include <stddef.h>
unsigned long bench_allocations = 0, bench_allocated_bytes = 0;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static void count(size_t size) {
    __atomic_fetch_add(&bench_allocations, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&bench_allocated_bytes, size, __ATOMIC_RELAXED);
}
void *malloc(size_t size) { count(size); return __libc_malloc(size); }
void *calloc(size_t number, size_t size) { count(number * size); return __libc_calloc(number, size); }
void *realloc(void *old, size_t size) { count(size); return __libc_realloc(old, size); }
"""

Snapshot = dict[str, Any]
Pids = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Counts:
    """The counts of one pass, for one call, by role and name; and the functions entered, by role and folder.

    What `both` names is the number for both roles together, where that is not the sum.
    """

    rows: dict[str, dict[str, float]]
    folders: dict[str, dict[str, float]]
    redis: dict[str, float]
    both: dict[str, float] = field(default_factory=dict)


class Pass:
    """One way of counting, with what it needs of its processes."""

    def __init__(self, name: str, system: System, workload: str, calls: int, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._workload = workload
        self._order: dict[str, Any] = {"tools": [INSTANT], "in_flight": _IN_FLIGHT[workload], "calls": calls}
        settings = {"BENCH_COUNTS": str(folder), "PYTHONPATH": f"{folder / 'first'}:{ROOT}"}
        (folder / "first").mkdir()
        (folder / "first" / "sitecustomize.py").write_text("import benchmarks.calling.counted\n")
        if name in {"calls", "start"}:
            settings["BENCH_COUNT_CALLS"] = "1"
        if name == "memory":
            settings |= {"LD_PRELOAD": str(_malloc_counter(folder)), "PYTHONMALLOC": "malloc"}
        if name == "instructions":
            self._order |= _SLOW
            system = replace(system, environment=_under_valgrind(system.environment, folder))
        self._system = replace(system, settings={**system.settings, **settings})

    def run(self, stage: Stage) -> Counts:
        """Start the system, count, and end it. Raises `TrialFailed`."""
        with running(self._system, stage, _SECONDS) as trial:
            producer = trial.start_producer()
            trial.first_call(producer)
            if self._name == "start":
                return self._counts(self._told(_pids(producer, trial)), {}, calls=1)
            self._make(producer, "window", min(_WARM_CALLS, self._order["calls"]))
            if self._workload == "W4":
                trial.stop_workers()
            return self._count(producer, trial, stage)

    def _make(self, producer: Producer, do: str, calls: int) -> None:
        self._warm_up(producer, do, calls)
        producer.tell(go=True)
        producer.answer()

    def _warm_up(self, producer: Producer, do: str, calls: int) -> None:
        order = {key: value for key, value in self._order.items() if key != "calls"}
        producer.tell(do=do, warm=min(20, order["in_flight"]), seconds=_SECONDS, most=calls, **order)
        producer.answer()

    def _count(self, producer: Producer, trial: Trial, stage: Stage) -> Counts:
        calls = self._order["calls"]
        self._warm_up(producer, "publish" if self._workload == "W4" else "window", calls)
        pids = _pids(producer, trial)
        tracers = _traced(pids, self._folder) if self._name == "system" else {}
        if self._name == "instructions":
            _callgrind(pids, "-i", "on")
        before, redis_before = self._told(pids), _redis_counts(stage)
        producer.tell(go=True)
        producer.answer()
        redis, after = _redis_counts(stage), self._told(pids)
        used = {name: (count - redis_before.get(name, 0)) / calls for name, count in redis.items()}
        if tracers:
            return Counts({role: {"system calls": n / calls} for role, n in _system_calls(tracers).items()}, {}, {})
        if self._name == "instructions":
            return Counts(self._instructions(pids, calls), {}, {})
        found = self._counts(after, before, calls)
        return replace(found, redis=used if self._name == "calls" else {})

    def _told(self, pids: Pids) -> dict[str, list[Snapshot]]:
        if self._name in {"system", "instructions"}:  # counted from outside
            return {}
        return {role: [_ask(self._folder / str(pid)) for pid in numbers] for role, numbers in pids.items()}

    def _counts(self, after: dict[str, list[Snapshot]], before: dict[str, list[Snapshot]], calls: int) -> Counts:
        rows, folders = {}, {}
        files: set[str] = set()
        for role, snapshots in after.items():
            entered: Counter[str] = Counter()
            bytecode: dict[str, int] = {}
            totals: Counter[str] = Counter()
            for snapshot, sign in [*((one, 1) for one in snapshots), *((one, -1) for one in before.get(role, ()))]:
                for function, count in snapshot["entered"].items():
                    entered[function] += sign * count
                bytecode |= snapshot["bytecode"]
                for name in ("resumed", "called", "allocations", "allocated_bytes"):
                    totals[name] += sign * snapshot.get(name, 0)
            often = {function for function, count in entered.items() if count * _OFTEN >= calls}
            own = {function.partition(":")[0] for function in often if _folder_of(function) in _own_folders()}
            files |= own
            rows[role] = self._row(entered, often, bytecode, totals, calls)
            if self._name == "calls":
                rows[role]["own files"] = float(len(own))
            if self._name == "start":
                rows[role]["start: modules"] = max(snapshot["modules"] for snapshot in snapshots)
            by_folder: Counter[str] = Counter()
            for function, count in entered.items():
                by_folder[_folder_of(function)] += count
            folders[role] = {name: count / calls for name, count in by_folder.items()}
        if self._name == "calls":
            return Counts(rows, folders, {}, {"own files": float(len(files))})
        return Counts(rows, {}, {})

    def _row(
        self, entered: Counter[str], often: set[str], bytecode: dict[str, int], totals: Counter[str], calls: int
    ) -> dict[str, float]:
        if self._name == "memory":
            return {
                "allocations": totals["allocations"] / calls,
                "allocated, kB": totals["allocated_bytes"] / calls / 1024,
            }
        if self._name == "start":
            return {"start: Python functions": float(entered.total())}
        return {
            "Python functions": entered.total() / calls,
            "resumed": totals["resumed"] / calls,
            "C calls": totals["called"] / calls,
            "different functions": float(len(often)),
            "their bytecode, kB": sum(bytecode[function] for function in often) / 1024,
            "loop turns": sum(count for name, count in entered.items() if name.endswith(_TURN)) / calls,
        }

    def _instructions(self, pids: Pids, calls: int) -> dict[str, dict[str, float]]:
        _callgrind(pids, "-i", "off")
        _callgrind(pids, "-d")
        return {
            role: {"instructions, thousand": sum(_total(self._folder, pid) for pid in numbers) / calls / 1e3}
            for role, numbers in pids.items()
        }


def _pids(producer: Producer, trial: Trial) -> Pids:
    def with_children(pid: int) -> list[int]:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]

    return {
        "agent": with_children(producer.pid),
        "worker": [pid for worker in trial.worker_pids for pid in with_children(worker)],
    }


def _ask(path: Path) -> Snapshot:
    with socket.socket(socket.AF_UNIX) as asker:
        asker.settimeout(_ASK_SECONDS)
        asker.connect(str(path))
        with asker.makefile("rb") as answer:
            return dict(json.loads(answer.read()))


def _redis_counts(stage: Stage) -> dict[str, float]:
    with Redis.from_url(stage.redis_url) as client:
        stats, commands = client.info("stats"), client.info("commandstats")
    own = {"cmdstat_info", "cmdstat_client|setinfo", "cmdstat_hello"}
    return {
        "commands, also inside scripts": sum(one["calls"] for name, one in commands.items() if name not in own),
        "bytes to Redis": float(stats["total_net_input_bytes"]),
        "bytes from Redis": float(stats["total_net_output_bytes"]),
    }


def _malloc_counter(folder: Path) -> Path:
    source, library = folder / "malloc.c", folder / "malloc.so"
    source.write_text(_MALLOC)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True, timeout=_ASK_SECONDS)  # noqa: S607 - the compiler of this machine
    return library


def _traced(pids: Pids, folder: Path) -> dict[str, tuple[Path, subprocess.Popen[bytes]]]:
    tracers = {}
    for role, numbers in pids.items():
        if not numbers:  # publishing needs no worker
            continue
        path = folder / f"strace-{role}"
        targets = (word for pid in numbers for word in ("-p", str(pid)))
        command: list[str | Path] = ["strace", "-c", "-f", "-q", "-o", path, *targets]
        tracers[role] = path, subprocess.Popen(command, stderr=subprocess.DEVNULL)
    time.sleep(_ATTACH_SECONDS)
    return tracers


def _system_calls(tracers: dict[str, tuple[Path, subprocess.Popen[bytes]]]) -> dict[str, int]:
    counted = {}
    for role, (path, tracer) in tracers.items():
        tracer.send_signal(signal.SIGINT)
        tracer.wait(_ASK_SECONDS)
        lines = (line.split() for line in path.read_text().splitlines())
        counted[role] = sum(
            int(words[3]) for words in lines if words[3:4] and words[3].isdigit() and words[-1] != "total"
        )
    return counted


def _under_valgrind(environment: str, folder: Path) -> str:
    """Make an environment whose interpreter runs under callgrind, and return its name."""
    python = ENVIRONMENTS / _VALGRIND / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    tool = f"--tool=callgrind --instr-atstart=no --callgrind-out-file={folder}/callgrind.%p"
    python.write_text(f'#!/bin/sh\nexec valgrind -q {tool} "{python_of(environment)}" "$@"\n')
    python.chmod(0o755)
    return _VALGRIND


def _callgrind(pids: Pids, *options: str) -> None:
    for pid in (pid for numbers in pids.values() for pid in numbers):
        command = ["callgrind_control", *options, str(pid)]
        subprocess.run(command, capture_output=True, check=True, timeout=_ASK_SECONDS)


def _total(folder: Path, pid: int) -> int:
    lines = (
        line for path in folder.glob(f"callgrind.{pid}.*") for line in path.read_text(errors="replace").splitlines()
    )
    return sum(int(line.split()[1]) for line in lines if line.startswith("totals:"))


def _own_folders() -> frozenset[str]:
    return frozenset(
        f"{room.name}/{part}"
        for room in (ROOT / name for name in ("registry", "modules", "tasks", "workers", "gateway", "cli"))
        for package in room.glob("toolfleet*")
        for part in {path.relative_to(package).parts[0].removesuffix(".py") for path in package.rglob("*.py")}
    )


def _folder_of(function: str) -> str:
    """The room and folder of the product's functions; else the package that a function belongs to."""
    path = Path(function.partition(":")[0])
    if path.is_relative_to(ROOT) and path.parts[len(ROOT.parts)] != "benchmarks":
        room, _, *rest = path.relative_to(ROOT).parts
        return f"{room}/{rest[0].removesuffix('.py')}" if rest else room
    if path.is_relative_to(HERE) and not path.is_relative_to(ENVIRONMENTS):
        return "benchmarks"
    if "site-packages" in path.parts:
        return path.parts[path.parts.index("site-packages") + 1].removesuffix(".py")
    return "generated code" if str(path).startswith("<") else "standard library"


def _markdown(found: Sequence[Counts], title: str) -> str:
    rows: dict[str, dict[str, float]] = {role: {} for role in _ROLES}
    for counts in found:
        for role, row in counts.rows.items():
            rows[role] |= row
    lines = [title, "", "| a call | agent | worker | both |", "|---|---:|---:|---:|"]
    together = {name: count for counts in found for name, count in counts.both.items()}
    for name in dict.fromkeys(name for role in _ROLES for name in rows[role]):
        agent, worker = (rows[role].get(name, 0.0) for role in _ROLES)
        both = together.get(name, agent + worker)
        lines.append(f"| {name} | {_number(agent)} | {_number(worker)} | {_number(both)} |")
    redis = {name: count for counts in found for name, count in counts.redis.items()}
    lines += [f"| {name} | | | {_number(count)} |" for name, count in redis.items()]
    folders = next((counts.folders for counts in found if counts.folders), None)
    if folders:
        lines += ["", "| Python functions of a call, by folder | agent | worker |", "|---|---:|---:|"]
        names = {name for table in folders.values() for name in table}
        by_role = {name: [folders.get(role, {}).get(name, 0.0) for role in _ROLES] for name in names}
        for name, (agent, worker) in sorted(by_role.items(), key=lambda item: -sum(item[1])):
            if agent + worker >= 1:
                lines.append(f"| {name} | {agent:.1f} | {worker:.1f} |")
    return "\n".join(lines) + "\n"


def _number(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.1f}"


def _system(name: str) -> System:
    """Return the system, with an interpreter that can count."""
    system = BY_NAME[name]
    if system is OURS and sys.version_info < _PYTHON:
        system = replace(OURS, environment=environment_of("{}.{}".format(*_PYTHON)))
    if not is_ready(system.environment):
        install(system.environment)
    return system


def main() -> None:
    """Count, print, and write a table among the results."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks counters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--system", choices=BY_NAME, default=OURS.name)
    options.add_argument("--workload", choices=_IN_FLIGHT, default="W1")
    options.add_argument("--calls", type=int, default=2_000)
    options.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES[:-1])
    chosen = options.parse_args()
    needs = {"memory": "cc", "system": "strace", "instructions": _VALGRIND}
    missing = [needs[name] for name in chosen.passes if name in needs and not shutil.which(needs[name])]
    if missing:
        sys.exit(f"Not installed: {', '.join(missing)}. Choose other --passes.")
    install("module")
    system = _system(chosen.system)
    found = []
    with tempfile.TemporaryDirectory() as root, stages(Path(root)) as (stage, _):
        for name in chosen.passes:
            folder = Path(root) / name
            folder.mkdir()
            try:
                found.append(Pass(name, system, chosen.workload, chosen.calls, folder).run(stage))
            except TrialFailed as exc:
                print(f"{name}: FAILED: {exc}", file=sys.stderr)
    title = f"What a call of {chosen.workload} costs: {chosen.calls} calls, {_IN_FLIGHT[chosen.workload]} in flight."
    text = _markdown(found, title)
    print(text)
    if chosen.system == OURS.name and set(PASSES[:-1]) <= set(chosen.passes):
        (HERE / "results" / f"counters_{chosen.workload}.md").write_text(text)


if __name__ == "__main__":
    main()
