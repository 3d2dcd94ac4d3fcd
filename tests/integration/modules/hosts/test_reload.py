"""A tool folder whose files change while calls run: what is saved is served a moment later, and nothing is away meanwhile."""

import asyncio
from pathlib import Path

import pytest

from support.hosts.tool_folder import GREET, HEAD, HostedFolder, hosted
from support.waiting import wait_until, wait_until_answered
from toolfleet_modules.hosts import host
from toolfleet_modules.hosts.folder.source_files import FolderReading, SourceFolder

pytestmark = pytest.mark.asyncio

VERSIONED = (
    HEAD
    + '''
from ._version import VERSION

@tool(effect="read")
async def version() -> int:
    """Say which."""
    return VERSION
'''
)


def numbered(number: int) -> str:
    return (
        HEAD
        + f'''
import asyncio, os, pathlib

@tool(effect="read")
async def number(go: str = "") -> list[int]:
    """Say which this is, once there is that file."""
    while go and not pathlib.Path(go).exists():
        await asyncio.sleep(0.01)
    return [{number}, os.getpid()]
'''
    )


async def number(folder: HostedFolder) -> int:
    result = await folder.call("number")
    assert result.success, result
    return int(result.result[0])


async def reaches(folder: HostedFolder, wanted: int) -> None:
    """Wait until the tool is of this version."""

    async def is_there() -> bool:
        return await number(folder) == wanted

    await wait_until_answered(is_there, f"version {wanted} is served")


async def greeted(folder: HostedFolder, words: str) -> bool:
    return bool((await folder.call("greet", name="Ada")).result == words)


@pytest.mark.usual
async def test_a_saved_file_is_served_a_moment_later(tmp_path: Path) -> None:
    """A new one, a changed one, and one that has gone; the listener is told of each, and of nothing else."""
    async with hosted(tmp_path, {"owls.py": numbered(1)}) as folder:
        first = folder.host.tools["owls.number"].definition
        folder.write("crows.py", GREET)
        await folder.wait_for_tools("number", "greet")
        folder.write("owls.py", numbered(2))
        await wait_until(lambda: folder.host.tools["owls.number"].definition != first, "it is another")
        assert await number(folder) == 2
        (folder.path / "crows.py").unlink()
        await folder.wait_for_tools("number")


async def test_a_file_that_is_saved_during_the_first_reading_is_served_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard of: the folder is watched before it is read."""
    monkeypatch.setattr(host, "_RESCAN_SECONDS", 3600.0)
    read = SourceFolder.read

    def read_before_a_save(folder: SourceFolder) -> FolderReading:
        reading = read(folder)
        if not (later := tmp_path / "crows.py").exists():
            later.write_text(GREET)
        return reading

    monkeypatch.setattr(SourceFolder, "read", read_before_a_save)
    async with hosted(tmp_path, {"owls.py": numbered(1)}) as folder:
        await folder.wait_for_tools("number", "greet")


async def test_running_calls_end_in_the_generation_that_they_began_in(tmp_path: Path) -> None:
    """Their process ends after them."""
    async with hosted(tmp_path, {"owls.py": numbered(1)}, security="off") as folder:
        old = asyncio.ensure_future(folder.call("number", go=str(tmp_path / "go")))
        before = (await folder.call("number")).result
        folder.write("owls.py", numbered(2))
        await wait_until(lambda: folder.host.tools["owls.number"].definition.version is not None, "served")
        await reaches(folder, 2)
        after = (await folder.call("number")).result
        assert not old.done()
        (tmp_path / "go").touch()

        assert (await old).result == before
        assert after[1] != before[1]
        await wait_until(lambda: not Path(f"/proc/{before[1]}").exists(), "the old process has ended")


@pytest.mark.slow
async def test_no_call_fails_over_fifty_saves(tmp_path: Path) -> None:
    """A tool that is in both generations is never away, and each call has an answer of one of them."""
    async with hosted(tmp_path, {"owls.py": numbered(0)}, security="off") as folder:
        results: list[object] = []
        is_over = False

        async def calling() -> None:
            while not is_over:
                result = await folder.call("number")
                results.append(result.result[0] if result.success else result)

        callers = [asyncio.ensure_future(calling()) for _ in range(5)]
        for at in range(1, 51):
            folder.write("owls.py", numbered(at))
            await reaches(folder, at)
        is_over = True
        await asyncio.gather(*callers)

        assert [each for each in results if not isinstance(each, int)] == []
        assert len(results) > 100


async def test_a_file_that_breaks_keeps_its_version_before(tmp_path: Path) -> None:
    """Whatever breaks it, and until it is whole again; a file beside it goes on to its next version."""
    files = {"owls.py": numbered(1), "crows.py": GREET}
    async with hosted(tmp_path, files, security="off", load_seconds=2) as folder:
        for text, kind in (
            ("def (", "SyntaxError"),
            (numbered(2) + "import no_such_package", "ImportError"),
            (numbered(3) + "raise KeyError('x')", "KeyError"),
            (numbered(4) + "import os\nos._exit(1)", "ProcessEnded"),
            (numbered(5) + "import time\ntime.sleep(60)", "LoadTimeout"),
        ):
            folder.write("owls.py", text)
            await folder.wait_for_errors({"owls.py": (kind, "previous")})
            assert await number(folder) == 1
        folder.write("crows.py", GREET.replace("hoot", "caw"))
        await wait_until(lambda: folder.host.tools["owls.greet"].definition.version is not None, "served")
        await wait_until_answered(lambda: greeted(folder, "caw Ada"), "the other file is served")
        assert await number(folder) == 1
        folder.write("owls.py", numbered(6))
        await folder.wait_for_errors({})
        assert await number(folder) == 6


async def test_a_broken_helper_takes_no_tool_away(tmp_path: Path) -> None:
    """The files that import it stay as they are with its version before."""
    async with hosted(tmp_path, {"owls.py": VERSIONED, "_version.py": "VERSION = 1\n"}) as folder:
        folder.write("_version.py", "VERSION = 1 / 0\n")
        await folder.wait_for_errors({"_version.py": ("ZeroDivisionError", "previous")})
        assert (await folder.call("version")).result == 1
        folder.write("_version.py", "VERSION = 2\n")
        await folder.wait_for_errors({})
        assert (await folder.call("version")).result == 2


async def test_a_file_that_the_scan_refuses_is_withdrawn(tmp_path: Path) -> None:
    """Its version before is not served either; when it is clean again, it is back."""
    async with hosted(tmp_path, {"owls.py": numbered(1), "crows.py": GREET}, security="strict") as folder:
        assert folder.errors() == {"owls.py": ("SecurityError", "none")}
        folder.write("crows.py", "import socket\n" + GREET)
        await folder.wait_for_errors({"owls.py": ("SecurityError", "none"), "crows.py": ("SecurityError", "none")})
        assert folder.host.tools == {}
        folder.write("crows.py", GREET)
        await folder.wait_for_tools("greet")


async def test_what_changes_nothing_starts_nothing(tmp_path: Path) -> None:
    """A file that is saved as it was, one without tools, and one that is touched only."""
    async with hosted(tmp_path, {"owls.py": numbered(1)}, security="off") as folder:
        before = (await folder.call("number")).result
        folder.write("owls.py", numbered(1))
        (folder.path / "notes.txt").write_text("x")
        assert await folder.host.reload() is False
        assert (await folder.call("number")).result == before


async def test_a_replayed_call_is_not_run_again_by_the_next_generation(tmp_path: Path) -> None:
    """Replies are the host's, not its processes': a repeat under the same id gets what the first one came to."""
    counting = (
        HEAD
        + '''
import pathlib

@tool(effect="once")
def add(path: str) -> int:
    """Add a line."""
    with pathlib.Path(path).open("a") as file:
        file.write("x")
    return len(pathlib.Path(path).read_text())
'''
    )
    note = tmp_path / "note"
    async with hosted(tmp_path / "tools", {"owls.py": counting}) as folder:
        first = await folder.client.send("owls.add", {"path": str(note)}, call_id="one")
        version = folder.host.tools["owls.add"].definition.version
        folder.write("owls.py", counting + "# another\n")
        await wait_until(lambda: folder.host.tools["owls.add"].definition.version != version, "reloaded")
        again = await folder.client.send("owls.add", {"path": str(note)}, call_id="one")

        assert (first.result, again.result, note.read_text()) == (1, 1, "x")
        assert (await folder.client.reconcile("one"))["result"] == 1
