"""Draws the rooms, and the folders and files of each, from what their modules import."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

from docsite.wrapping import wrapped

ROOMS = {
    "registry": "what tools exist, and who may use them. It knows no broker",
    "modules": "how tools are served: the SDK. It knows no broker",
    "tasks": "how a call travels: queues, ledger, retry, results, the client. It knows no HTTP to modules",
    "workers": "how one call is run: pool, runner, middleware, executors",
    "gateway": "how others than Python agents come in, over HTTP, and who they are",
    "cli": "the `toolfleet` command, a fleet on one machine, a new module's files, the pytest plugin",
}

Arrows = Mapping[str, set[str]]

_FACE = "toolfleet"
_ROOT = Path(__file__).parents[1]
_HEAD = """# Architecture

Six rooms, and imports go one way. Each room is a folder with a package. Inside a room, each folder or file is one
concern, and imports go one way as well. `make lint` checks both.

An arrow means: imports. Where a longer way leads to the same place, the direct arrow is left out of a drawing, but counted
below it. A folder stands one floor above the highest one that it imports. `make map` makes the drawings and the tables from
the code.

## The rooms
"""
_TAIL = """Beside the rooms stand `examples` (real modules, [an agent's core](../guides/agents-core.md) and the demo) and
`benchmarks`. The public face is the package `toolfleet`: what an agent, a module or a test imports. It holds nothing of
its own. [What is left out](why-not.md#what-is-left-out-on-purpose) says what Toolfleet does not bring, and why.
"""


def architecture_page() -> str:
    """Return the page: the rooms, and for each room its folders and files."""
    packages = [_FACE, *(_package(room) for room in ROOMS)]
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]
    rooms = _arrows((one.split(".")[0], other.split(".")[0]) for one, other in imports)
    table = [f"| `{room}` | {knows} |" for room, knows in ROOMS.items()]
    drawn = _drawing("Which room imports which", rooms)
    parts = [
        _HEAD,
        drawn,
        "| room | knows |\n|---|---|",
        *table,
        f"\n{_TAIL}",
        *(_chapter(room, imports) for room in ROOMS),
    ]
    return wrapped("\n".join(parts))


def _package(room: str) -> str:
    return f"toolfleet_{room}"


def _chapter(room: str, imports: Iterable[tuple[str, str]]) -> str:
    package = _package(room)
    root = _ROOT / room / package
    texts = {path.parent.name: path for path in root.glob("*/__init__.py")}
    texts |= {path.stem: path for path in root.glob("*.py") if not path.stem.startswith("__")}
    inside = _arrows(
        (one.split(".")[1], other.split(".")[1])
        for one, other in imports
        if one.startswith(f"{package}.") and other.startswith(f"{package}.")
    )
    between = {one: {other for other in others if other in texts} for one, others in inside.items() if one in texts}
    rows = [f"| `{_shown(name, path)}` | {_sentence(path)} |" for name, path in sorted(texts.items())]
    drawn = _drawing(f"Which part of {room} imports which", between)
    folders = {name for name, path in texts.items() if path.stem == "__init__"}
    of_folders = {one: others & folders for one, others in between.items() if one in folders}
    arrows = sum(map(len, of_folders.values()))
    counted = f"{len(folders)} folders on {_floors(of_folders)} floors, with {arrows} arrows between them.\n"
    return "\n".join([f"## {room}\n", drawn, counted, "| part | what it does |\n|---|---|", *rows, ""])


def _shown(name: str, path: Path) -> str:
    return f"{name}/" if path.stem == "__init__" else path.name


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
