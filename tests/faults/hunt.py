"""Looks for the test that finds a planted fault, and keeps what was found."""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from bed.early import VIRTUAL
from faults.planted import ROOT, Fault, locate, read_product
from faults.trial import TrialTree
from tiers import SHORT, TESTS, tier_of

Reach = Literal["near", "room", "all"]
REACHES: tuple[Reach, ...] = get_args(Reach)
"""Which tests are run: those that seem to be about the fault's file, all of its room, too, or really all."""

_NEAREST, _NEAR = 3, 9
"""Files of tests in the first two runs, whatever room they are of."""
_ROOM = 2
_HALVES = (False, True)
"""Whether tests run in virtual time."""
_APART = {"house", "faults"}
"""Folders of tests that read the product's text, and so find what no behaviour shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a fault: `test` has found it, or none (`None`), after so many seconds. `reach`: which tests were run.

    `state` is the digest of what it is true of: the product, and the file of the test that has found it, or else all tests.
    `remarks` name tests that failed without the fault too, or not again with it, and files that could not be imported.
    """

    fault: str
    state: str
    test: str | None
    seconds: float
    reach: Reach
    remarks: tuple[str, ...] = ()


class Findings:
    """The findings in a file, the last of each fault."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: dict[str, Finding] = {}
        if file.exists():
            rows = json.loads(file.read_text())
            self._rows = {row["fault"]: Finding(**{**row, "remarks": tuple(row["remarks"])}) for row in rows}

    def of(self, fault: Fault) -> Finding | None:
        """Return the last finding about a fault, which may be about another state of the product."""
        return self._rows.get(_digest(fault))

    def add(self, finding: Finding) -> None:
        """Keep a finding in the place of an earlier one."""
        self._rows[finding.fault] = finding
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps([asdict(row) for row in self._rows.values()], indent=1))


class Hunt:
    """Plants one fault after the other in the copy `tree`, which is as the working tree is."""

    def __init__(self, tree: TrialTree, findings: Findings, *, processes: int, reach: Reach) -> None:
        self._tree, self._findings = tree, findings
        self._processes, self._reach = processes, reach
        self._broken = list[str]()  # tests that fail without any fault
        self._product = read_product(ROOT)
        files = {path: path.read_text() for path in sorted(TESTS.rglob("test_*.py"))}
        self._tests = {
            path: text
            for path, text in files.items()
            if path.relative_to(TESTS).parts[0] not in _APART and tier_of(path) in SHORT
        }

    def known(self, fault: Fault) -> Finding | None:
        """Return what an earlier run found, if that is true of the present product and tests."""
        kept = self._findings.of(fault)
        if kept is None or kept.state != self._state(kept.test):
            return None
        return kept if kept.test or REACHES.index(kept.reach) >= REACHES.index(self._reach) else None

    def search(self, fault: Fault) -> Finding:
        """Run tests with the fault until one finds it: it fails again alone, and passes without the fault."""
        begun = time.monotonic()
        path = locate(fault, self._product)
        remarks = list[str]()
        found = None
        for batch in self.batches(fault):
            found = self._found_in(fault, path, batch, remarks)
            if found is not None:
                break
        seconds = round(time.monotonic() - begun, 1)
        finding = Finding(_digest(fault), self._state(found), found, seconds, self._reach, tuple(remarks))
        self._findings.add(finding)
        return finding

    def _state(self, test: str | None) -> str:
        tests = [text for path, text in self._tests.items() if test is None or path == ROOT / test.partition("::")[0]]
        return hashlib.sha256(repr((sorted(self._product.items()), tests)).encode()).hexdigest()

    def _found_in(self, fault: Fault, path: Path, batch: Sequence[Path], remarks: list[str]) -> str | None:
        unsteady = list[str]()
        words = [str(file.relative_to(ROOT)) for file in batch]
        processes = self._processes if len(batch) > _NEAREST else 0  # each takes seconds to start
        while words:
            with self._tree.changed(path, fault.old, fault.new):
                failed = self._tree.run(words, left_out=[*self._broken, *unsteady], processes=processes)
                repeated = {test for test in failed if "::" in test and self._tree.run([test])}
            if not failed:
                return None
            for test in failed:
                if test not in repeated:
                    remarks.append(f"{test} does not count: it cannot be imported, or passes when it is repeated")
                    unsteady.append(test)
                elif not self._tree.run([test]):
                    return test
                else:
                    remarks.append(f"{test} does not count: it fails without the fault, too")
                    self._broken.append(test)
            words = [word for word in words if word not in failed]
        return None

    def batches(self, fault: Fault) -> list[list[Path]]:
        """Order the files of tests: the last finder's, those that seem to be about the fault's file, those of its room, and all others.

        Those in virtual time are apart from others: they need a process of their own.
        """
        path = locate(fault, self._product)
        kept = self._findings.of(fault)
        last = [file for file in self._tests if kept and kept.test and file == ROOT / kept.test.partition("::")[0]]
        left = sorted(self._tests.keys() - set(last), key=lambda file: (-self._nearness(file, path, fault), file))
        nearest, near, left = left[:_NEAREST], left[_NEAREST : _NEAREST + _NEAR], left[_NEAREST + _NEAR :]
        room = [file for file in left if _kind_of(file, fault.room) == _ROOM]
        others = [[file for file in left if tier_of(file) == tier and file not in room] for tier in SHORT]
        reached = [last, nearest, near, room, *others][: {"near": 3, "room": 4, "all": None}[self._reach]]
        halves = [
            [file for file in each if file.is_relative_to(VIRTUAL) is half] for each in reached for half in _HALVES
        ]
        return [half for half in halves if half]

    def _nearness(self, file: Path, path: Path, fault: Fault) -> int:
        """Count the words that both names share, those of the file's name and its folder's twice; more for a test that imports the module, has its name in virtual time, or is small."""
        words, own, others = (
            _words(path) | _words(Path(fault.name)),
            _words(Path(path.parent.name, path.name)),
            _words(file.relative_to(TESTS)),
        )
        module = ".".join(path.with_suffix("").parts[1:])
        imports = path.suffix == ".py" and module in self._tests[file]
        # Whose folders are seldom the rooms.
        is_named = file.is_relative_to(VIRTUAL) and file.stem == f"test_{path.stem}"
        return 3 * (imports + is_named) + len(words & others) + len(own & others) + _kind_of(file, fault.room)


def _kind_of(file: Path, room: str) -> int:
    """Say whether a file of tests is the room's own, another room's, or about whole fleets: from small tests to large ones."""
    kind, *rest = file.relative_to(TESTS).parts
    return (_ROOM if rest[0] == room else 1) if kind in {"unit", "integration", "virtual"} else 0


def _words(path: Path) -> set[str]:
    found = re.findall(r"[a-z]+", str(path.with_suffix("")).replace("toolfleet_", ""))
    return {word.removesuffix("s") for word in found if word != "test"}


def _digest(fault: Fault) -> str:
    return hashlib.sha256(repr((fault.old, fault.new)).encode()).hexdigest()
