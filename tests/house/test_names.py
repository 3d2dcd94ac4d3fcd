"""Names in the rooms: each public class has one of its own, retired words are not used, and each module begins with a verb."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
# Each had several meanings, or one that nobody would search for; beside it what is said now.
RETIRED = {
    "bell": "notify key",
    "desk": "service",
    "dock": "adapter",
    "keeper": "poller, pool or supervisor",
    "look": "probe, fetch, read or check",
    "news": "event or change",
    "room": "capacity",
    "share": "a caller's limit",
    "shelf": "reader",
    "told": "context, subject or reason",
    "wish": "request",
}
# What a connection is called by none of its kind any more.
CONNECTIONS = {"PipelinedConnection", "RespProtocol"}
# These stand in messages, which older versions read.
LEFT_AS_THEY_ARE = {("registry/toolfleet_registry/contracts/jobs.py", "wish")}

# Whether a word is a verb cannot be seen: "Tools" could be one. A new one is put in its place here.
VERBS = frozenset(
    """
    Adapts Adds Admits Answers Applies Asks Assembles Begins Binds Bounds Buffers Builds Caches Calls Cancels Carries
    Changes Checks Chooses Claims Collects Combines Compares Compiles Completes Composes Computes Configures
    Confirms Connects Corrects Counts Decides Declares Defines Delivers Derives Describes Digests Does Draws Drops
    Ends Evaluates Executes Exports Extends Feeds Fetches Fills Finds Follows Gets Gives Groups Handles Has Hides
    Holds Implements Imports Joins Judges Keeps Knows Leases Leaves Limits Listens Lists Loads Locks Looks Makes
    Maps Marks Moves Names Narrows Notes Notices Offers Offloads Opens Overrides Parses Passes Pauses Picks Pipelines Plans Plays Pools
    Posts Prepares Prices Prints Probes Provides Publishes Puts Queues Reaches Reads Receives Recognises Recognizes
    Refuses Registers Remembers Removes Reports Republishes Reserves Resolves Restricts Retries Returns Rewrites
    Routes Runs Says Schedules Seals Searches Sends Serves Sets Shares Shows Signs Speaks Starts Steps Stores Surrounds
    Takes Tells Translates Validates Verifies Waits Watches Weighs Words Writes
    """.split()
)


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Whoever searches for it finds one class in all rooms."""
    counted = Counter(
        node.name for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )

    assert len(counted) > 500
    assert sorted(name for name, count in counted.items() if count > 1 and not name.startswith("_")) == []


def test_no_name_has_a_retired_word() -> None:
    """Neither of a module, a class or a function, nor of what they take and hold."""
    assert sorted({(path, name) for path, name in _defined() if _retired(name)} - LEFT_AS_THEY_ARE) == []


def test_a_connection_is_no_line_and_no_link() -> None:
    """Lines are of text, and links of a chain of calls."""
    lines = {"line", "lines", "link", "links"}

    assert sorted((path, name) for path, name in _connections() if _parts(name) & lines) == []


def test_each_module_says_first_what_it_does() -> None:
    """Whoever reads the list of a folder's files reads what they do: "Fetches messages in batches"."""
    found = {path: (ast.get_docstring(tree) or "").partition(" ")[0].rstrip(",:") for path, tree in _trees().items()}

    assert len(found) > 300
    assert {path: word for path, word in found.items() if word not in VERBS} == {}


@cache
def _trees() -> dict[str, ast.Module]:
    """All modules of the rooms, by their paths; parsed by the first test that asks: each process of a run reads this file."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).glob("toolfleet*/**/*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def _defined() -> Iterator[tuple[str, str]]:
    for path, tree in _trees().items():
        yield path, Path(path).stem
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield path, name
                case ast.arg(arg=name) | ast.alias(asname=str(name)):
                    yield path, name
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    yield path, name
                case _:
                    pass


def _connections() -> Iterator[tuple[str, str]]:
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.arg(arg=name, annotation=ast.expr() as kind):
                    named = name
                case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=kind):
                    named = name
                case ast.FunctionDef(name=name, returns=ast.expr() as kind):
                    named = name
                case ast.ClassDef(name=name) if name in {"Line", "Lines", "Link"}:
                    yield path, name
                    continue
                case _:
                    continue
            if CONNECTIONS & set(re.findall(r"\w+", ast.unparse(kind))):
                yield path, named


def _parts(name: str) -> set[str]:
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _retired(name: str) -> bool:
    parts = _parts(name)
    forms = {form for word in RETIRED for form in (word, f"{word}s", f"{word}es", f"{word}ed", f"{word}ing")}
    return bool(parts & forms) or {"put", "back"} <= parts
