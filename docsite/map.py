"""Draws the rooms from what their modules import, and lists the folders and files of each."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp

ROOMS = {
    "registry": "what tools exist, and who may use them. It knows no broker",
    "modules": "how tools are served: the SDK. It knows no broker",
    "tasks": "how a call travels: queues, ledger, retry, results, the client. It knows no HTTP to modules",
    "workers": "how one call is run: pool, runner, middleware, executors",
    "gateway": "how other clients than Python agents come in over HTTP, and who they are",
    "cli": "the `toolfleet` command, a fleet on one machine, a new module's files, the pytest plugin",
}

Arrows = Mapping[str, set[str]]

_FACE = "toolfleet"
_ROOT = Path(__file__).parents[1]
_PART = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- end of map -->)", re.DOTALL)


def architecture_page(page: str) -> str:
    """Return the page with the drawing and the table of the rooms in the place that it marks."""
    rooms = _arrows((one.split(".")[0], other.split(".")[0]) for one, other in _imports())
    table = "".join(f"| `{room}` | {knows} |\n" for room, knows in ROOMS.items())
    drawn = _drawing("Which room imports which", rooms)
    return _placed(page, f"\n{drawn}\n| room | knows |\n|---|---|\n{table}\n")


def room_page(room: str, page: str) -> str:
    """Return a room's README with the table of its folders and files in the place that it marks."""
    root = _ROOT / room / _package(room)
    parts = {f"{path.parent.name}/": path for path in root.glob("*/__init__.py")}
    parts |= {path.name: path for path in root.glob("*.py") if not path.stem.startswith("__")}
    rows = "".join(f"| `{name}` | {_sentence(path)} |\n" for name, path in sorted(parts.items()))
    return _placed(page, f"\n| part | what it does |\n|---|---|\n{rows}\n{_counted(_package(room), root)}\n\n")


@cache
def _imports() -> list[tuple[str, str]]:
    """Return each import of one module of the rooms by another."""
    graph = grimp.build_graph(_FACE, *(_package(room) for room in ROOMS), cache_dir=None)
    return [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]


def _counted(package: str, root: Path) -> str:
    """Return how many folders a room has, on how many floors: a folder stands one above the highest that it imports."""
    folders = {path.parent.name for path in root.glob("*/__init__.py")}
    ends = (
        (one.split(".")[1], other.split(".")[1])
        for one, other in _imports()
        if one.startswith(f"{package}.") and other.startswith(f"{package}.")
    )
    between = _arrows((one, other) for one, other in ends if {one, other} <= folders)
    arrows = sum(map(len, between.values()))
    return f"{len(folders)} folders on {_floors(between)} floors, with {arrows} imports of one folder by another."


def _placed(page: str, text: str) -> str:
    """Return the page with the text between its marks. Raises ValueError for a page without them, which is not ours."""
    placed, found = _PART.subn(lambda _: text, page)
    if found != 1:
        raise ValueError(f"{page[:40]!r} has {found} places for the map, not one")
    return placed


def _package(room: str) -> str:
    return f"toolfleet_{room}"


def _sentence(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")


def _arrows(imports: Iterable[tuple[str, str]]) -> Arrows:
    arrows = defaultdict[str, set[str]](set)
    for one, other in imports:
        if one != other:
            arrows[one].add(other)
    return arrows


def _drawing(title: str, arrows: Arrows) -> str:
    lines = [f"  {one} --> {other}" for one in sorted(arrows) for other in sorted(_direct(one, arrows))]
    return "\n".join(["```mermaid", "flowchart TD", f"  accTitle: {title}", *lines, "```\n"])


def _floors(arrows: Arrows) -> int:
    """Return how many folders the longest chain of imports has."""

    def floor(folder: str) -> int:
        return 1 + max(map(floor, arrows.get(folder, ())), default=0)

    return max(map(floor, arrows), default=1)


def _direct(one: str, arrows: Arrows) -> set[str]:
    """Return what `one` imports and reaches by no longer way."""
    by_others = {far for near in arrows[one] for far in _reached(near, arrows) if far != near}
    return {other for other in arrows[one] if other not in by_others}


def _reached(start: str, arrows: Arrows) -> set[str]:
    reached, waiting = set[str](), [start]
    while waiting:
        for other in arrows.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached
