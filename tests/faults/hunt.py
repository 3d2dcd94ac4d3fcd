"""Looks for the test that finds a planted fault, and keeps what was found."""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from faults.planted import ROOT, Fault, locate, read_product
from faults.trial import TrialTree
from tiers import SHORT, TESTS, tier_of

_BATCHES = (1, 9, 40)
"""Files of tests in the first runs; the rest of the room's are one run, and all others another one."""
_APART = {"house", "faults"}
"""Folders of tests that read the product's text, and so find what no behaviour shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a fault: `test` has found it, or none (`None`), after so many seconds. `complete`: all tests were run.

    `remarks` name tests that failed without the fault too, or not again with it, and files that could not be imported.
    """

    fault: str
    product: str
    test: str | None
    seconds: float
    complete: bool
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

    def __init__(self, tree: TrialTree, findings: Findings, *, processes: int, only_room: bool) -> None:
        self._tree, self._findings = tree, findings
        self._processes, self._only_room = processes, only_room
        self._product = read_product(ROOT)
        self._digest = hashlib.sha256(repr(sorted(self._product.items())).encode()).hexdigest()
        files = {path: path.read_text() for path in sorted(TESTS.rglob("test_*.py"))}
        self._tests = {
            path: text
            for path, text in files.items()
            if path.relative_to(TESTS).parts[0] not in _APART and tier_of(path) in SHORT
        }

    def known(self, fault: Fault) -> Finding | None:
        """Return what an earlier run found, if the product and the test are still the same."""
        kept = self._findings.of(fault)
        if kept is None or kept.product != self._digest or not (kept.test or kept.complete or self._only_room):
            return None
        return kept if kept.test is None or (ROOT / kept.test.partition("::")[0]) in self._tests else None

    def search(self, fault: Fault) -> Finding:
        """Run tests with the fault until one finds it: it fails again alone, and passes without the fault."""
        begun = time.monotonic()
        path = locate(fault, self._product)
        remarks = list[str]()
        found = None
        for batch in self._batches(fault, path):
            found = self._found_in(fault, path, batch, remarks)
            if found is not None:
                break
        finding = Finding(
            _digest(fault),
            self._digest,
            found,
            round(time.monotonic() - begun, 1),
            not self._only_room,
            tuple(remarks),
        )
        self._findings.add(finding)
        return finding

    def _found_in(self, fault: Fault, path: Path, batch: Sequence[Path], remarks: list[str]) -> str | None:
        left_out = list[str]()
        words = [str(file.relative_to(ROOT)) for file in batch]
        processes = self._processes if len(batch) > 1 else 0
        while words:
            with self._tree.changed(path, fault.old, fault.new):
                failed = self._tree.run(words, left_out=left_out, processes=processes)
                repeated = {test for test in failed if "::" in test and self._tree.run([test])}
            for test in failed:
                if test in repeated and not self._tree.run([test]):
                    return test
                remarks.append(f"{test} {'fails without it' if test in repeated else 'does not count'}")
            if not failed:
                return None
            left_out += [test for test in failed if "::" in test]
            words = [word for word in words if word not in failed]
        return None

    def _batches(self, fault: Fault, path: Path) -> list[list[Path]]:
        """Order the files of tests: the last finder's first, then the room's, those before the others that seem to be about `path`."""
        kept = self._findings.of(fault)
        last = ROOT / kept.test.partition("::")[0] if kept is not None and kept.test else None
        ranked = sorted(self._tests, key=lambda file: (file != last, -self._nearness(file, path)))
        room = [file for file in ranked if file == last or _is_of_room(file, fault.room)]
        batches = list[list[Path]]()
        for size in _BATCHES if last in self._tests else _BATCHES[1:]:
            batches.append(room[:size])
            room = room[size:]
        batches.append(room)
        if not self._only_room:
            others = [file for file in ranked if not any(file in batch for batch in batches)]
            batches.append(others[: _BATCHES[-1]])
            batches += [[file for file in others[_BATCHES[-1] :] if tier_of(file) == tier] for tier in SHORT]
        return [batch for batch in batches if batch]

    def _nearness(self, file: Path, path: Path) -> float:
        """Count the words that the names of both files share, and whether the test imports the module."""
        words, others = _words(path), _words(file.relative_to(TESTS))
        stem = _words(Path(path.name))
        module = ".".join(path.with_suffix("").parts[1:])
        imported = 3 if path.suffix == ".py" and module in self._tests[file] else 0
        return imported + len(words & others) + len(stem & others)


def _is_of_room(file: Path, room: str) -> bool:
    kind, *rest = file.relative_to(TESTS).parts
    return kind in {"unit", "integration"} and rest[0] == room


def _words(path: Path) -> set[str]:
    found = re.findall(r"[a-z]+", str(path.with_suffix("")).replace("toolfleet_", ""))
    return {word.removesuffix("s") for word in found if word != "test"}


def _digest(fault: Fault) -> str:
    return hashlib.sha256(repr((fault.old, fault.new)).encode()).hexdigest()
