"""Two distributions come from this tree: `toolfleet`, and `toolfleet-sdk`, which stands by itself."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import requires
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import toolfleet
import toolfleet.sdk
from toolfleet_tasks.client import parts

ROOT = Path(__file__).parents[3]
WHOLE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SDK: dict[str, Any] = tomllib.loads((ROOT / "modules" / "pyproject.toml").read_text())
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
OTHER_ROOMS: list[str] = SDK["tool"]["hatch"]["build"]["hooks"]["custom"]["other-rooms"]
VERSION: str = re.findall(r"\"toolfleet-sdk==([\d.]+)\"", (ROOT / "pyproject.toml").read_text())[0]
MOST_PACKAGES = 15
TOO_MUCH = {
    *("asyncio", "celery", "httpx", "jsonschema_rs", "kombu", "redis"),
    *("sqlite3", "starlette", "structlog", "toolfleet_tasks", "uvicorn"),
}


@pytest.fixture
def wheels(built: Path) -> tuple[set[str], set[str]]:
    """The files of the two wheels."""
    names = (f"{name}-{VERSION}-py3-none-any.whl" for name in ("toolfleet", "toolfleet_sdk"))
    whole, sdk = (_files(built / name) for name in names)
    return whole, sdk


@pytest.mark.fleet
def test_no_file_is_in_both_wheels(wheels: tuple[set[str], set[str]]) -> None:
    """One can be installed, and removed, without the other's files."""
    whole, sdk = wheels

    assert sorted(whole & sdk) == []


def test_every_file_of_the_rooms_is_in_a_wheel(wheels: tuple[set[str], set[str]]) -> None:
    """Between them they have each package as it is here: code, scripts, templates, and nothing else."""
    expected = {
        str(path.relative_to(ROOT / room))
        for room in ROOMS
        for path in (ROOT / room).glob("toolfleet*/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert set.union(*wheels) == expected


def test_the_sdk_brings_few_packages() -> None:
    """It and what it needs are at most 15 packages, and Celery is none of them."""
    needed = {"toolfleet-sdk"} | _installed_for(SDK["project"]["dependencies"])

    assert len(needed) <= MOST_PACKAGES, sorted(needed)
    assert needed.isdisjoint({"celery", "kombu", "redis", "httpx", "toolfleet"})


def test_what_one_takes_the_other_leaves() -> None:
    """The wheel of `toolfleet` excludes exactly the files that the SDK's takes from other rooms, and they exist."""
    excluded = WHOLE["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]

    assert [path.removeprefix("/") for path in excluded] == OTHER_ROOMS
    assert [path for path in OTHER_ROOMS if not (ROOT / path).exists()] == []


def test_import_rules_know_every_part_of_the_registry() -> None:
    """Each folder and file of the registry either belongs to the SDK or is forbidden to it."""
    contracts = WHOLE["tool"]["importlinter"]["contracts"]
    (rule,) = (each for each in contracts if each["name"] == "toolfleet-sdk stands by itself")
    package = ROOT / "registry" / "toolfleet_registry"
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    taken = {Path(path).stem for path in OTHER_ROOMS if path.startswith("registry/")} - {"py"}

    assert _of_registry(rule["source_modules"]) == taken - {"__init__"}
    assert _of_registry(rule["source_modules"]) | _of_registry(rule["forbidden_modules"]) == parts - {"__init__"}


@pytest.mark.parametrize("face", [toolfleet, toolfleet.sdk, parts])
def test_a_name_is_the_same_for_type_checkers_and_at_run_time(face: ModuleType) -> None:
    """What a face imports when it is asked for is what type checkers are told that it imports."""
    tree = ast.parse(Path(str(face.__file__)).read_text())
    (told,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in told.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert names.keys() <= set(getattr(face, "__all__", names))  # the fleet's own parts are no face for others
    for name, (module, attribute) in names.items():
        assert getattr(face, name) is getattr(import_module(str(module)), attribute)


def test_the_sdk_loads_little_and_a_name_that_needs_more_says_what_to_install(tmp_path: Path) -> None:
    """No queue, no client, no server and no database: each is loaded when a module uses it.

    Where only the SDK is installed, asking for something of the fleet's is one clear error.
    """
    code = f"""
import sys, toolfleet.sdk
print({TOO_MUCH!r} & set(sys.modules))
for name in ("toolfleet_tasks", "httpx", "redis"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import toolfleet
for face, name in ((toolfleet, "ToolFleet"), (toolfleet.sdk, "ModuleClient"), (toolfleet.sdk, "RedisReplies")):
    try:
        getattr(face, name)
    except ImportError as exc:
        print(exc)
print(hasattr(toolfleet, "no_such_name"))
"""
    assert subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True).splitlines() == [
        "set()",
        "toolfleet.ToolFleet needs 'toolfleet_tasks': pip install 'toolfleet'.",
        "toolfleet.sdk.ModuleClient needs 'httpx': pip install 'toolfleet-sdk[client,redis]'.",
        "toolfleet.sdk.RedisReplies needs 'redis': pip install 'toolfleet-sdk[client,redis]'.",
        "False",
    ]


def test_both_ask_for_the_same_versions() -> None:
    """What both need, both need in the same words."""
    ours, theirs = (_requirements(each["project"]) for each in (WHOLE, SDK))

    assert {name: theirs[name] for name in ours.keys() & theirs.keys()} == {
        name: ours[name] for name in ours.keys() & theirs.keys()
    }


def test_the_version_stands_in_one_place() -> None:
    """`toolfleet` asks for the SDK of its own version, and both read theirs there; the changelog has a part for it."""
    assert "version" not in WHOLE["project"] | SDK["project"]
    patterns = {each["tool"]["hatch"]["version"]["pattern"] for each in (WHOLE, SDK)}
    (pattern,) = patterns

    assert re.findall(pattern, (ROOT / "pyproject.toml").read_text()) == [VERSION]
    assert re.search(rf"(?m)^## {re.escape(VERSION)}( |$)", (ROOT / "CHANGELOG.md").read_text())


def test_both_have_the_licence() -> None:
    """An sdist takes files from its own folder only: so there is a copy, which is the same."""
    assert (ROOT / "modules" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def _files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _installed_for(lines: Iterable[str]) -> set[str]:
    """The names of all packages that these requirements install, with what those need."""
    found: set[str] = set()
    wanted = list(lines)
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate()):
            found.add(name)
            wanted += requires(name) or ()
    return found


def _of_registry(modules: list[str]) -> set[str]:
    return {name.removeprefix("toolfleet_registry.") for name in modules if name.startswith("toolfleet_registry.")}


def _requirements(project: dict[str, Any]) -> dict[str, str]:
    lines = chain(project["dependencies"], *project["optional-dependencies"].values())
    return {each.name: str(each.specifier) for each in map(Requirement, lines) if not each.extras}
