"""Finds tests that wait for a time instead of for a fact: sleeps, and limits of waits that are numbers of their own.

`python -m support.wait_check` reports each place by its file and line.

A limit is judged where it is a number, or is computed of numbers alone: `PATIENCE_SECONDS` of `support.waiting` is the one that tests
use, or a multiple of it, and 0 does not wait. Not judged are names, whatever number they have, and Python in the text of a program
that a test runs: that is a string here.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]

VIRTUAL = ("bed", "simulation", "virtual")
"""Folders whose tests move the clock: a second there is none of ours. Nothing in them is judged."""
PROOFS = ("chaos", "pauses", "soak")
"""Folders of programs that run for minutes, at the pace of their plans. Nothing in them is judged."""
FAKES = ("support", "conformance/everything", "fundamentals/fleet/owls")
"""Folders of fakes and fixtures: a module that is slow, a poll. They may sleep; their limits are judged.

The conformance suite and the tutorial bring modules of their own: what they show are tools that take their time.
"""

SLEEPERS = frozenset(["asyncio", "time", "anyio"])
"""The modules whose `sleep` is meant."""
WAITS = {"wait_for": 1, "timeout": 0, "result": 0, "join": 0, "wait": 0}
"""Calls that take their limit by position, and where: `asyncio.timeout(5)`, `handle.result(5)`, `process.wait(5)`."""
OWN_WAITS = frozenset(
    """
    abandoned all_ended becomes finished job_ended leave results scrape succeeded until wait wait_for wait_ready wait_until
    wait_until_answered wait_until_sync
    """.split()
)
"""Functions of tests that take their limit as `seconds=`. The product calls many of its own times so, which tests hand to it."""
PRODUCT = frozenset(
    [
        *(
            "call",
            "call_many",
            "submit",
            "begin",
            "replay",
            "execute",
            "signature",
            "result_of",
        ),  # of fleets and registries
        *("AdapterCalls", "FleetTools", "fleet_server"),  # of adapters, for the calls that they make
        "iter",  # of pydantic-ai: an agent's run ends by it, and the fleet's calls with the run
        *("inspect", "broadcast"),  # of Celery: all of it is spent on collecting replies
    ]
)
"""Calls whose `timeout=` is a time that is handed to the product, and no wait of the test's own."""


def places_in(text: str, *, may_sleep: bool = False) -> list[tuple[int, str]]:
    """Return the places of a file where a test waits for a time: the line, and what is wrong."""
    tree = ast.parse(text)
    slept = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in SLEEPERS
        for alias in node.names
        if alias.name == "sleep"
    }
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sorted({(call.lineno, what) for call in calls for what in _faults(call, slept, may_sleep=may_sleep)})


def all_places(tests: Path) -> dict[str, list[tuple[int, str]]]:
    """Return the places of all files below a folder of tests that have any, by their paths in it."""
    found = dict[str, list[tuple[int, str]]]()
    for path in sorted(tests.rglob("*.py")):
        inside = path.relative_to(tests)
        may_sleep = any(inside.is_relative_to(folder) for folder in FAKES)
        if inside.parts[0] not in {*VIRTUAL, *PROOFS} and (places := places_in(path.read_text(), may_sleep=may_sleep)):
            found[inside.as_posix()] = places
    return found


def _faults(call: ast.Call, slept: set[str], *, may_sleep: bool) -> Iterator[str]:
    name, owner = _name(call.func), _owner(call.func)
    if name == "sleep" or (not owner and name in slept):
        if not may_sleep and (owner in SLEEPERS or name in slept) and not _is_zero(call):
            yield "a test sleeps: wait for the fact (support.waiting), or move the clock (tests/virtual)"
        return
    if name == "to_thread" and call.args:  # what is called in the thread
        name = _name(call.args[0])
    limits = [each.value for each in call.keywords if each.arg == "timeout" and name not in PRODUCT]
    limits += [each.value for each in call.keywords if each.arg == "seconds" and name in OWN_WAITS]
    # A mark of pytest is no wait.
    if name in WAITS and len(call.args) > WAITS[name] and (name != "timeout" or owner in SLEEPERS):
        limits.append(call.args[WAITS[name]])
    for limit in limits:
        if _number(limit):
            yield f"{name} waits {ast.unparse(limit)} s: use PATIENCE_SECONDS of support.waiting, or a multiple of it"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _owner(function: ast.expr) -> str:
    return _name(function.value) if isinstance(function, ast.Attribute) else ""


def _is_zero(call: ast.Call) -> bool:
    given = [*call.args, *(each.value for each in call.keywords)]
    return bool(given) and isinstance(given[0], ast.Constant) and given[0].value == 0


def _number(limit: ast.expr) -> float:
    """Return the value of an expression of numbers alone, or 0."""
    if any(not isinstance(node, ast.Constant | ast.BinOp | ast.operator) for node in ast.walk(limit)):
        return 0
    value = eval(compile(ast.Expression(limit), "limit", "eval"), {})  # noqa: S307 - of constants
    return value if isinstance(value, int | float) else 0


if __name__ == "__main__":
    everything = all_places(TESTS).items()
    sys.exit("\n".join(f"tests/{path}:{line}: {what}" for path, places in everything for line, what in places) or None)
