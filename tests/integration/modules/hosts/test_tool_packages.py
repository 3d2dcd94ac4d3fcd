"""Packages that the files of a tool folder ask for: installed beside them, and what cannot be had costs no other file anything."""

from pathlib import Path

import psutil
import pytest

from support.hosts.isolation import can_isolate
from support.hosts.tool_folder import GREET, HEAD, hosted
from support.hosts.wheels import build_sdist, build_wheel, installed_from
from support.waiting import wait_until
from toolfleet_modules.hosts.child_process import Fence
from toolfleet_modules.hosts.folder.packages import Environments, Installer, InstallOptions
from toolfleet_modules.hosts.folder.source_files import Requirements

pytestmark = pytest.mark.asyncio


def using(package: str, *asked: str, tool: str = "version") -> str:
    lines = "".join(f'#   "{each}",\n' for each in asked)
    block = f"# /// script\n# dependencies = [\n{lines}# ]\n# ///\n" if asked else ""
    return (
        block
        + HEAD
        + f'''
import os
import {package}

@tool(effect="read")
def {tool}() -> list[object]:
    """Say which."""
    return [{package}.VERSION, {package}.__file__, os.getpid()]
'''
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Some packages: two versions of one, one that needs it, and one that comes in the place of one of ours."""
    folder = tmp_path / "wheels"
    build_wheel(folder, "talons", "1.0")
    build_wheel(folder, "talons", "2.0")
    build_wheel(folder, "feathers", "1.0", needs=["talons<2"])
    build_wheel(folder, "pydantic", "1.0")
    return folder


async def test_a_file_gets_the_packages_that_it_names(tmp_path: Path, wheels: Path) -> None:
    """In its own block or in the folder's list; all that goes together is in one place, in one process, and found again."""
    files = {"a.py": using("talons", "talons<2"), "b.py": using("feathers", tool="other"), "c.py": GREET}
    folder_path, packages = tmp_path / "tools", installed_from(wheels, tmp_path / "environments")
    folder_path.mkdir()
    (folder_path / "requirements.txt").write_text("feathers >= 1  # all of them\n\n")
    async with hosted(folder_path, files, packages=packages, security="off") as folder:
        await folder.wait_for_tools("version", "other", "greet")
        assert folder.errors() == {}
        one, two = (await folder.call("version")).result, (await folder.call("other")).result
        assert (one[0], two[0], one[2]) == ("1.0", "1.0", two[2])
        assert Path(one[1]).is_relative_to(tmp_path / "environments")
    (installed,) = [each for each in (tmp_path / "environments").iterdir() if each.is_dir()]

    nothing = InstallOptions(tmp_path / "environments", options=packages.options, seconds=0)
    async with hosted(folder_path, files, packages=nothing, security="off") as folder:
        assert set(folder.host.tools) == {"owls.version", "owls.other", "owls.greet"}
        assert Path((await folder.call("version")).result[1]).is_relative_to(installed)


@pytest.mark.slow
async def test_files_that_contradict_each_other_have_processes_of_their_own(tmp_path: Path, wheels: Path) -> None:
    """Each with its version; tools that compute, and files that ask for nothing, run beside them."""
    files = {
        "a.py": using("talons", "talons==1.0", tool="one"),
        "b.py": using("talons", "talons==2.0", tool="two").replace("@tool(", '@tool(runs_in="process", '),
        "c.py": using("feathers", "feathers", tool="three"),
        "d.py": GREET,
    }
    packages = installed_from(wheels, tmp_path / "environments")
    async with hosted(tmp_path / "tools", files, packages=packages, security="off") as folder:
        await folder.wait_for_tools("one", "two", "three", "greet")
        found = {name: (await folder.call(name)).result for name in ("one", "two", "three")}

        assert {name: version for name, (version, *_) in found.items()} == {"one": "1.0", "two": "2.0", "three": "1.0"}
        assert found["one"][2] == found["three"][2] != found["two"][2]
        assert folder.errors() == {}
        folder.write("b.py", using("talons", "talons", tool="two"))
        await wait_until(lambda: len({tool.lane for tool in folder.host.tools.values()}) == 1, "they go together")
        assert (await folder.call("two")).result[0] == "1.0"


async def test_what_cannot_be_installed_is_an_error_of_that_file(tmp_path: Path, wheels: Path) -> None:
    """Its version before stays in effect; the others are served as ever, and it is when it can be."""
    files = {"a.py": using("talons", "talons==1.0"), "b.py": using("missing", "missing"), "c.py": GREET}
    packages = installed_from(wheels, tmp_path / "environments")
    async with hosted(tmp_path / "tools", files, packages=packages, security="off") as folder:
        await folder.wait_for_errors({"b.py": ("InstallError", "none")})
        assert set(folder.host.tools) == {"owls.version", "owls.greet"}
        (error,) = folder.host.manifest.load_errors or []
        assert "missing was not found" in error.message

        folder.write("a.py", using("talons", "talons==3.0"))
        await folder.wait_for_errors({"a.py": ("InstallError", "previous"), "b.py": ("InstallError", "none")})
        assert (await folder.call("version")).result[0] == "1.0"

        folder.write("a.py", using("talons", "talons==2.0"))
        await folder.wait_for_errors({"b.py": ("InstallError", "none")})
        assert (await folder.call("version")).result[0] == "2.0"

        build_wheel(wheels, "missing", "1.0")
        await folder.host.reload(is_forced=True)
        await folder.wait_for_errors({"b.py": ("DuplicateTool", "none")})


@pytest.mark.slow
async def test_a_list_that_cannot_be_installed_leaves_the_one_before(tmp_path: Path, wheels: Path) -> None:
    """And all files with it, whether it names what is not there or is no list at all."""
    (tmp_path / "tools").mkdir()
    listed = tmp_path / "tools" / "requirements.txt"
    listed.write_text("talons==1.0\n")
    packages = installed_from(wheels, tmp_path / "environments")
    async with hosted(tmp_path / "tools", {"a.py": using("talons")}, packages=packages, security="off") as folder:
        await folder.wait_for_tools("version")
        for text in ("talons==1.0\nmissing\n", "--index-url http://owls.test\n", "not a package\n"):
            listed.write_text(text)
            await folder.wait_for_errors({"requirements.txt": ("InstallError", "previous")})
            assert (await folder.call("version")).result[0] == "1.0"
        listed.write_text("talons==2.0\n")
        await folder.wait_for_errors({})
        assert (await folder.call("version")).result[0] == "2.0"


BLOCKS = {
    "list.py": ("# /// script\n# dependencies = 3\n# ///\n", "no list of texts"),
    "toml.py": ("# /// script\n# dependencies = [\n# ///\n", "no TOML"),
    "option.py": ('# /// script\n# dependencies = ["-r x"]\n# ///\n', "names no package"),
    "python.py": ('# /// script\n# requires-python = "<3"\n# ///\n', "It needs Python <3"),
    "open.py": ("# /// script\n# dependencies = []\n", "without an end"),
}


async def test_a_block_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    """In one sentence; nothing is installed for it."""
    async with hosted(tmp_path, {name: block + GREET for name, (block, _) in BLOCKS.items()}) as folder:
        assert folder.errors() == dict.fromkeys(BLOCKS, ("InstallError", "none"))
        said = {Path(each.file).name: each.message for each in folder.host.manifest.load_errors or ()}
    assert [name for name, (_, words) in BLOCKS.items() if words not in said[name]] == []


@pytest.mark.slow
async def test_ours_are_not_replaced(tmp_path: Path, wheels: Path) -> None:
    """A file that asks for another version of what the SDK stands on gets a clear error, and the SDK its own."""
    packages = installed_from(wheels, tmp_path / "environments")
    async with hosted(
        tmp_path / "tools", {"a.py": using("pydantic", "pydantic==1.0")}, packages=packages, security="off"
    ) as folder:
        await folder.wait_for_errors({"a.py": ("InstallError", "none")})
        (error,) = folder.host.manifest.load_errors or []
        assert "pydantic" in error.message


async def test_nothing_is_installed_for_a_file_that_the_scan_refuses(tmp_path: Path, wheels: Path) -> None:
    """Nor for a folder none of whose files is left."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "requirements.txt").write_text("talons\n")
    packages = installed_from(wheels, tmp_path / "environments")
    refused = using("talons", "feathers")
    async with hosted(tmp_path / "tools", {"a.py": refused}, packages=packages, security="strict") as folder:
        assert folder.errors() == {"a.py": ("SecurityError", "none")}
        assert not (tmp_path / "environments").exists()


@pytest.mark.slow
async def test_packages_without_a_wheel_are_built_only_where_that_is_allowed(tmp_path: Path) -> None:
    """Their own code runs then, and not otherwise."""
    note = tmp_path / "built"
    build_sdist(tmp_path / "wheels", "hooting", note)
    packages = installed_from(tmp_path / "wheels", tmp_path / "environments")
    async with hosted(
        tmp_path / "tools", {"a.py": using("hooting", "hooting")}, packages=packages, security="off"
    ) as folder:
        await folder.wait_for_errors({"a.py": ("InstallError", "none")})
        assert not note.exists()

    allowed = installed_from(tmp_path / "wheels", tmp_path / "environments", allow_builds=True)
    options = [*allowed.options, "--no-build-isolation"]  # what it is built with is in no wheel here
    installer = Installer(InstallOptions(allowed.folder, allow_builds=True, options=options), tmp_path)
    await installer.install(frozenset({"hooting"}), tmp_path / "target")
    assert note.exists()


@pytest.mark.slow
@pytest.mark.skipif(not can_isolate(), reason="bubblewrap is not installed, or may make no namespaces")
async def test_an_isolated_process_reads_its_packages(tmp_path: Path, wheels: Path) -> None:
    """Also where they are kept below a folder of which it has its own."""
    packages = installed_from(wheels, tmp_path / "environments")
    fence = Fence(isolation="bwrap", readable=(packages.folder,))
    files = {"a.py": using("talons", "talons==1.0")}
    async with hosted(tmp_path / "tools", files, packages=packages, fence=fence, security="off") as folder:
        await folder.wait_for_tools("version")
        assert (await folder.call("version")).result[0] == "1.0"


async def test_an_install_that_takes_too_long_is_ended(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whatever it has started; nothing of it is left, and the others are served meanwhile."""
    _hanging_uv(tmp_path, monkeypatch)
    packages = installed_from(wheels, tmp_path / "environments", seconds=1)
    files = {"a.py": using("talons", "talons"), "b.py": GREET}
    async with hosted(tmp_path / "tools", files, packages=packages, security="off") as folder:
        await folder.wait_for_errors({"a.py": ("Installing", "none")})
        assert (await folder.call("greet", name="Ada")).success
        await wait_until((tmp_path / "started").exists, "the install has begun")
        await folder.wait_for_errors({"a.py": ("InstallError", "none")})
        assert not psutil.pid_exists(int((tmp_path / "started").read_text()))
    assert [each.name for each in (tmp_path / "environments").iterdir() if each.is_dir()] == []


async def test_an_interrupted_install_leaves_no_half_of_an_environment(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a host that was killed has left is removed by the next one that installs the same."""
    options = installed_from(wheels, tmp_path / "environments")
    installer = Installer(options, tmp_path)
    environments = Environments(options, installer)
    wanted: Requirements = frozenset({"talons==1.0"})
    path = await environments.take(wanted)
    half = path.with_name(f".{path.name}.building")
    path.rename(half)
    (half / "rest").touch()

    assert environments.find(wanted) is None
    assert await environments.take(wanted) == path
    assert (path / "talons" / "__init__.py").exists()
    assert not (path / "rest").exists()
    assert not half.exists()


def _hanging_uv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `uv` that says its number and comes to no end: the real one ends too soon."""
    program = folder / "uv"
    program.write_text(
        f"#!/bin/sh\necho $$ >{folder / 'begun'} && mv {folder / 'begun'} {folder / 'started'}\nsleep 600\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
