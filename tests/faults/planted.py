"""A planted fault: a silent bug in a guarantee, as one exact piece of the product's text and what replaces it.

The file is found by that text, so a table of faults survives files that move.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
TABLE = Path(__file__).parent / "planted.toml"


class FaultRefused(Exception):
    """A fault that cannot be planted; the text says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of a table of faults.

    `breaks` says in a sentence what no longer holds. `old` occurs once in all rooms, in a file of `room`.
    """

    room: str
    name: str
    breaks: str
    old: str
    new: str


def read_table(path: Path = TABLE) -> list[Fault]:
    """Read the faults of a TOML file: an array `fault` of tables with the fields of `Fault`."""
    return [Fault(**row) for row in tomllib.loads(path.read_text())["fault"]]


def read_product(root: Path) -> dict[Path, str]:
    """Read the Python and Lua files of all rooms, by their paths inside `root`."""
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*") if path.suffix in {".py", ".lua"})
    return {path.relative_to(root): path.read_text() for path in files}


def locate(fault: Fault, product: dict[Path, str]) -> Path:
    """Return the file that has the fault's old text, which has to be there once.

    Raises:
        FaultRefused: The text is nowhere, more than once, or in another room.

    """
    found = [path for path, text in product.items() for _ in range(text.count(fault.old))]
    if len(found) != 1:
        raise FaultRefused(f"{fault.name}: the old text occurs {len(found)} times, not once: {[*map(str, found)]}")
    if found[0].parts[0] != fault.room:
        raise FaultRefused(f"{fault.name}: the old text is in {found[0]}, not in the room {fault.room!r}")
    return found[0]
