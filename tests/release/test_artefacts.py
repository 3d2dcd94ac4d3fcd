"""What is in the two sdists and the two wheels that a release has."""

import re
import subprocess
import tomllib
from collections.abc import Mapping
from itertools import chain

import pytest
from packaging.metadata import Metadata

from release.artefacts import ROOT, Distribution, contents

pytestmark = pytest.mark.release
NAMES = ["toolfleet", "toolfleet-sdk"]
PACKAGES = {
    "toolfleet": {
        "toolfleet",
        "toolfleet_cli",
        "toolfleet_gateway",
        "toolfleet_registry",
        "toolfleet_tasks",
        "toolfleet_workers",
    },
    "toolfleet-sdk": {"toolfleet", "toolfleet_modules", "toolfleet_registry"},
}
# What a build backend adds: to an sdist of the SDK also what it takes from the folder above its own.
MADE = {"PKG-INFO", ".gitignore"}


def test_a_wheel_out_of_an_sdist_is_the_one_out_of_the_tree(distributions: Mapping[str, Distribution]) -> None:
    """Nothing that a wheel needs is missing from its sdist."""
    for each in distributions.values():
        of_sdist, of_tree = (
            {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}
            for wheel in (each.wheel, each.wheel_of_tree)
        )
        assert of_sdist == of_tree


def test_no_file_is_in_both_wheels(distributions: Mapping[str, Distribution]) -> None:
    """Either can be removed without the other's files."""
    whole, sdk = (set(contents(distributions[name].wheel)) for name in NAMES)

    assert sorted(whole & sdk) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_has_its_packages_and_nothing_else(name: str, distributions: Mapping[str, Distribution]) -> None:
    """No tests, no examples; what lawyers look for is there."""
    wheel = distributions[name].wheel
    files = set(contents(wheel))
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"

    assert {path.partition("/")[0] for path in files} == PACKAGES[name] | {info}
    assert f"{info}/licenses/LICENSE" in files


def test_type_checkers_find_each_package_typed(distributions: Mapping[str, Distribution]) -> None:
    """Between them the wheels say it once of each."""
    files = [path for each in distributions.values() for path in contents(each.wheel) if path.endswith("py.typed")]

    assert sorted(files) == sorted(f"{package}/py.typed" for package in set().union(*PACKAGES.values()))


def test_an_sdist_has_only_what_is_in_the_repository(distributions: Mapping[str, Distribution]) -> None:
    """Nothing that lies about in a working folder is given away, and each file is as it is there."""
    argv = ["/usr/bin/env", "git", "-C", str(ROOT), "ls-files"]
    ours = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    rooms = ("registry/", "tasks/", "modules/")  # the last has the README of the SDK
    of_sdk = {path.partition("/")[2]: path for room in rooms for path in ours if path.startswith(room)}
    places = {"toolfleet": {path: path for path in ours}, "toolfleet-sdk": of_sdk}

    for name, where in places.items():
        files = contents(distributions[name].sdist)
        assert sorted(files.keys() - where.keys() - MADE) == []
        assert [path for path in files.keys() - MADE if files[path] != (ROOT / where[path]).read_bytes()] == []


def test_both_have_the_version_that_stands_in_one_place(distributions: Mapping[str, Distribution]) -> None:
    """In `pyproject.toml`, where one asks for the other; the metadata of both are well formed and say the same."""
    ((version,),) = (re.findall(r'"toolfleet-sdk==([\w.+]+)"', (ROOT / "pyproject.toml").read_text()),)
    said = {name: _metadata(distributions[name]) for name in NAMES}

    assert {str(each.version) for each in said.values()} == {version}
    assert f"toolfleet-sdk=={version}" in [str(line) for line in said["toolfleet"].requires_dist or ()]
    for name in NAMES:
        assert said[name].name == name
        for artefact in (distributions[name].sdist, distributions[name].wheel):
            assert artefact.name.startswith(f"{name.replace('-', '_')}-{version}")


def test_the_changelog_says_what_the_version_brings(distributions: Mapping[str, Distribution]) -> None:
    """Its first part is this version's, and has entries."""
    version = str(_metadata(distributions["toolfleet"]).version)
    _, first, *_ = re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text())
    lines = first.splitlines()

    assert lines[0].split()[0] == version
    assert any(line.startswith("- ") for line in lines)


def test_the_commands_are_declared(distributions: Mapping[str, Distribution]) -> None:
    """The command, and the fixtures for tests of agents and modules."""
    wheel = distributions["toolfleet"].wheel
    (text,) = (data.decode() for name, data in contents(wheel).items() if name.endswith("/entry_points.txt"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {"console_scripts": project["scripts"], **project["entry-points"]}

    for group, entries in declared.items():
        assert f"[{group}]" in text
        assert all(f"{name} = {target}" in text for name, target in chain(entries.items()))


def _metadata(distribution: Distribution) -> Metadata:
    files = contents(distribution.wheel)
    (data,) = (data for name, data in files.items() if name.endswith(".dist-info/METADATA"))
    return Metadata.from_email(data, validate=True)
