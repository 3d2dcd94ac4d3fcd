"""Where a host's programs are at work, by what its line says."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from toolfleet_registry.config.host_settings import FolderSpec, McpSpec, Places


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with what lines name, on the disk: in memory it would be the system's, below `/dev`."""
    with TemporaryDirectory() as folder:
        for path in ("fleet/nest", "fleet/work", "far/bin", "far/lib"):
            Path(folder, path).mkdir(parents=True)
        for path in ("fleet/server.py", "far/data.db", "far/bin/server"):
            Path(folder, path).touch(mode=0o755)
        yield Path(folder)


@pytest.mark.parametrize(
    ("line", "writable"),
    [
        ({}, ["fleet"]),
        ({"directory": "work"}, ["fleet/work"]),
        ({"directory": "work", "args": ["../server.py"]}, ["fleet/work"]),
        ({"directory": "work", "args": ["../nest"]}, ["fleet/work", "fleet/nest"]),
        ({"directory": "work", "args": [".."]}, ["fleet/work", "fleet"]),
        ({"directory": "work", "args": ["--db", "{home}/far/data.db"]}, ["fleet/work", "far"]),
        ({"directory": "work", "args": ["--db={home}/far/not-yet.db"]}, ["fleet/work", "far"]),
        ({"directory": "work", "env": {"STORE": "{home}/far"}}, ["fleet/work", "far"]),
        (
            {"directory": "work", "args": ["/etc/hosts", "/", "/usr/share", "-c", "x" * 5000, "https://a/b"]},
            ["fleet/work"],
        ),
        ({"isolation": "bwrap", "args": ["server.py", "{home}/far/data.db"]}, ["far"]),
    ],
)
def test_a_program_works_in_its_directory_and_in_what_its_line_names(
    home: Path, line: dict[str, object], writable: list[str]
) -> None:
    """A file is named with its folder, unless that is the fleet's own, the system's, or one of everybody's."""

    def filled(value: object) -> object:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        return value.replace("{home}", str(home)) if isinstance(value, str) else value

    args = [filled(each) for each in line.pop("args", [])]  # type: ignore[attr-defined]
    spec = McpSpec.model_validate({**{name: filled(value) for name, value in line.items()}, "command": ["sh", *args]})
    places = spec.places(home / "fleet")

    assert places is not None
    assert list(dict.fromkeys(places.writable)) == [home / each for each in writable]


def test_a_program_reads_what_it_is_installed_with(home: Path) -> None:
    """The folder above `bin`, in which its libraries are."""
    places = McpSpec(command=(str(home / "far" / "bin" / "server"),)).places(home / "fleet")

    assert places is not None
    assert set(places.readable) == {home / "far"}


def test_what_has_no_programs_has_no_places(home: Path) -> None:
    """A server that is reached over HTTP runs elsewhere; a folder's tools are at work in it."""
    assert McpSpec(url="https://wiki.example/mcp").places(home) is None
    assert FolderSpec(folder=Path("nest")).places(home / "fleet") == Places(writable=(home / "fleet" / "nest",))
    assert FolderSpec(tools=("acme.tools.count",)).places(home / "fleet").readable == (home / "fleet",)
