"""Finds tests that fail now and then: `python -m flakes tests/virtual` runs each test 20 times next to two busy loops.

A file's runs share one start of pytest: its tests run in their order, and then all of them again, with new module fixtures. A failed
test is run once more by itself, without the loops. The counts and failures of each file are kept under `.cache/flakes`, so that a run goes on where an earlier
one stopped. They hold for the content of the file, of what tests share, and of the product: a commit of documents or of other tests
leaves them valid, and a change that is not committed yet does not. Without that folder, everything begins again.
"""

import argparse
import copy
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
KEPT = ROOT / ".cache" / "flakes"
RUNS, LOOPS = 20, 2
INSIDE = "--inside"
_PRODUCT = ("registry", "modules", "tasks", "workers", "gateway", "cli", "examples")
_KINDS = (".py", ".lua", ".toml", ".json", ".html", ".js", ".css", ".yml", ".ini")
# It ends with its parent, however that ends.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"


class Repeated:
    """A plugin for pytest that runs the collected tests several times, and writes each result as a line of JSON."""

    def __init__(self, record: Path, runs: int) -> None:
        self._record, self._runs = record, runs

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put copies of all tests behind them: in each round a test follows its usual predecessor, on module fixtures of the round."""
        rounds = [dict[pytest.Item | pytest.Collector, Any]() for _ in range(self._runs - 1)]
        items += [_copied(item, copies) for copies in rounds for item in list(items)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write which test runs now: what ends the process is known by it."""
        self._write(nodeid, "started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write that a test was skipped, or how it failed, in any of its phases."""
        if not report.passed:
            sections = (f"--- {name}\n{text}" for name, text in report.sections)
            self._write(report.nodeid, report.outcome, "\n".join([report.longreprtext, *sections]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write why a file cannot be collected."""
        if report.failed:
            self._write(report.nodeid, "failed", report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        """Write that all tests have run: without this line the process has ended before."""
        self._write("", "finished")

    def _write(self, test: str, outcome: str, output: str = "") -> None:
        with self._record.open("a") as record:
            record.write(json.dumps({"test": test, "outcome": outcome, "output": output}) + "\n")


def _copied(node: Any, copies: dict[pytest.Item | pytest.Collector, Any]) -> Any:
    """Return a copy of a test, or of its class or module, whose fixtures are set up for each copy; folders are shared."""
    if not isinstance(node, (pytest.Item, pytest.Class, pytest.Module)):
        return node
    if node not in copies:
        again = copies[node] = copy.copy(node)
        again.parent, again.stash = _copied(node.parent, copies), pytest.Stash()
        if isinstance(again, pytest.Function):
            again._report_sections = []
            for name in ("_instance", "_obj") if again.cls else ():  # an instance of the class for each run
                again.__dict__.pop(name, None)
            again._initrequest()
        for fixtures in node.session._fixturemanager._arg2node2fixturedefs.values():  # for `getfixturevalue`
            if node in fixtures:
                fixtures[again] = fixtures[node]
    return copies[node]


def inside(record: str, runs: str, *arguments: str) -> int:
    """Run pytest in this process, with each test repeated."""
    return int(pytest.main(list(arguments), plugins=[Repeated(Path(record), int(runs))]))


@contextmanager
def busy(loops: int) -> Generator[None]:
    """Keep processors busy, by processes that end with the block."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def run(target: str, runs: int) -> tuple[int, list[dict[str, str]]]:
    """Run a file's tests, and return how many runs came to an end, and the failures: `test` and `output` of each."""
    with tempfile.TemporaryDirectory(prefix="toolfleet-flakes-") as folder:
        record, said = Path(folder) / "record", Path(folder) / "said"
        options = ["-q", "--no-header", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), target]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with said.open("w") as output:
            child = subprocess.Popen(
                [sys.executable, __file__, INSIDE, str(record), str(runs), *options],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                ended = child.wait()
            finally:
                if child.poll() is None:
                    child.send_signal(signal.SIGINT)  # its fixtures end what they have started
                    child.wait()
        lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        counted = Counter(line["outcome"] for line in lines)
        failures = [line for line in lines if line["outcome"] == "failed"]
        is_known = failures or ended in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
        if not (counted["finished"] and is_known):
            last = lines[-1]["test"] if lines else target
            failures.append({"test": last, "output": f"pytest ended with {ended}:\n{said.read_text()}"})
    return counted["started"] - counted["skipped"], failures


def tried(target: str, runs: int, loops: int) -> dict[str, Any]:
    """Run a file's tests next to busy loops, and each that failed once more without them."""
    with busy(loops):
        count, failures = run(target, runs)
    file = target.partition("::")[0]
    alone = {
        test: run("".join([file, *test.partition("::")[1:]]), 1)[1]
        for test in {failure["test"] for failure in failures}
    }
    for failure in failures:
        again = alone[failure["test"]]
        failure["alone"] = f"failed again:\n{again[0]['output']}" if again else "passed"
    return {"target": target, "runs": count, "rounds": runs, "failures": failures}


def targets_of(named: Sequence[str]) -> list[str]:
    """Return the files of tests of these files and folders, and single tests as they are named."""
    return [target for name in named for target in ([name] if "::" in name else _files(ROOT / name))]


def _files(path: Path) -> Iterator[str]:
    if not path.exists():
        sys.exit(f"There is no {path}.")
    for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
        yield file.resolve().relative_to(ROOT).as_posix() if file.resolve().is_relative_to(ROOT) else str(file)


def key_of(target: str) -> str:
    """Return the digest of a target: of its name, its file's content, and the content of everything that all tests share."""
    file = ROOT / target.partition("::")[0]
    return hashlib.sha256(target.encode() + file.read_bytes() + _shared()).hexdigest()


@cache
def _shared() -> bytes:
    digest = hashlib.sha256((ROOT / "requirements.lock").read_bytes() + (ROOT / "pyproject.toml").read_bytes())
    folders = [ROOT / name for name in _PRODUCT]
    for path in sorted(path for folder in (*folders, TESTS) for path in folder.rglob("*")):
        if path.suffix in _KINDS and not path.name.startswith("test_") and path.is_file():
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.digest()


def main() -> int:
    """Run what was asked for, file by file, and print the counts and every failure."""
    options = argparse.ArgumentParser(prog="python -m flakes", description="Find tests that fail now and then.")
    options.add_argument("tests", nargs="*", default=["tests"], help="files, folders or single tests")
    options.add_argument("--runs", type=int, default=RUNS, help="of each test")
    options.add_argument("--loops", type=int, default=LOOPS, help="that keep the processors busy meanwhile")
    options.add_argument("--kept", type=Path, default=KEPT, help="the folder of what earlier runs found")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    chosen.kept.mkdir(parents=True, exist_ok=True)
    total, failures = 0, list[dict[str, str]]()
    for target in targets_of(chosen.tests):
        kept = chosen.kept / f"{key_of(target)}.json"
        known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"rounds": 0}
        if is_new := known["rounds"] < chosen.runs:
            known = tried(target, chosen.runs, chosen.loops)
            kept.write_text(json.dumps(known))
        total, failures = total + known["runs"], failures + known["failures"]
        earlier = "" if is_new else ", earlier"
        print(f"{target}: {known['runs']} runs, {len(known['failures'])} failed{earlier}; {total} so far", flush=True)  # noqa: T201 - what a run is for
    for failure in failures:
        print(f"\n=== {failure['test']}\n{failure['output']}\n=== the same test alone: {failure['alone']}")  # noqa: T201
    print(f"\n{total} runs, {len(failures)} failed")  # noqa: T201
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(inside(*sys.argv[2:]) if sys.argv[1:2] == [INSIDE] else main())
