"""Each planted fault can be planted: its old text is in one place, and what replaces it compiles."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bed.early import VIRTUAL
from faults.hunt import Findings, Hunt
from faults.planted import ROOMS, ROOT, Fault, FaultRefused, locate, read_product, read_table
from faults.trial import TrialTree
from support.lua_check import globals_of

FAULTS = [*read_table(), *read_table(ROOT / "tests/simulation/planted.toml")]
PRODUCT = read_product(ROOT)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    """Its old text occurs once, in its room, and the file is still Python or Lua with the new one."""
    path = locate(fault, PRODUCT)
    text = PRODUCT[path].replace(fault.old, fault.new)

    assert text != PRODUCT[path]
    if path.suffix == ".py":
        ast.parse(text)
    else:
        for part in re.split(r"(?m)^-- script: ", text):
            globals_of(f"-- {part}")


def test_faults_have_names_and_are_in_all_rooms() -> None:
    """Each can be asked for by its name."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.room for fault in FAULTS} == {*ROOMS}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"old": "no such text is in the product"}, "0 times"),
        ({"old": "import"}, "times, not once"),
        ({"room": "cli"}, "not in"),
    ],
    ids=["nowhere", "twice", "elsewhere"],
)
def test_a_fault_without_one_place_is_refused(changes: dict[str, str], why: str) -> None:
    """Nobody plants another fault than is meant."""
    with pytest.raises(FaultRefused, match=why):
        locate(replace(FAULTS[0], **changes), PRODUCT)


def test_tests_in_virtual_time_are_run_apart(tmp_path: Path) -> None:
    """All the short tests are run, each once, and none of virtual time next to others."""
    hunt = Hunt(TrialTree(tmp_path), Findings(tmp_path / "findings.json"), processes=1, reach="all")
    batches = hunt.batches(FAULTS[0])
    files = [file for batch in batches for file in batch]

    assert all(len({file.is_relative_to(VIRTUAL) for file in batch}) == 1 for batch in batches)
    assert {file.is_relative_to(VIRTUAL) for file in files} == {True, False}
    assert len(files) == len(set(files))
