"""A tool folder as a module: its files' functions are tools, which run in a process of their own."""

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.documents import programs
from support.hosts.tool_folder import GREET, HEAD, HostedFolder, hosted
from support.waiting import wait_until
from toolfleet_registry.contracts.tool_definition import Approvers, approvers_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def code(text: str) -> str:
    return HEAD + textwrap.dedent(text)


FILES = {
    "greet.py": GREET,
    "guide.py": programs("docs/guides/tool-folders.md")["tool-folder"].replace("count(", "count_day("),
    "production.py": programs("docs/operations/production.md")["folder-tool"].replace("count(", "count_wood("),
    "every_kind.py": code(
        '''
        import os

        @tool(effect="read", tags=["birds"])
        async def count(day: int, context: Context) -> dict[str, int]:
            """Count.

            Args:
                day: Of the year.
            """
            await context.progress(0.5, "half")
            return {"day": day, "pid": os.getpid()}

        @tool
        def whose(user_id: str | None = None) -> str:
            """Say whose."""
            return f"{user_id}'s"

        @tool(runs_in="process")
        def compute(n: int) -> list[int]:
            """Compute."""
            return [sum(range(n)), os.getpid()]
        '''
    ),
    "approved.py": code(
        '''
        @tool(approval=True)
        def pay(n: int) -> int:
            """Pay."""
            return n

        @tool(approvers={"permission": "owner", "users": ["carol", "bob"]})
        def refund(n: int) -> int:
            """Refund."""
            return n
        '''
    ),
    "raising.py": code(
        '''
        @tool
        def refuse() -> str:
            """Refuse."""
            raise ToolError("Not by day.", effect_state="none", retryable=True)

        @tool
        async def busy() -> str:
            """Be busy."""
            raise ModuleBusy(7)

        @tool
        def bug() -> str:
            """Have a bug."""
            raise KeyError("secret")
        '''
    ),
    "_names.py": "NAME = 'tower'\n",
    "importing.py": code(
        '''
        from . import crows
        from ._names import NAME

        @tool
        def where() -> str:
            """Say where."""
            return f"{NAME} {crows.caw()}"
        '''
    ),
    "crows.py": code(
        '''
        @tool
        def caw() -> str:
            """Caw."""
            return "caw"
        '''
    ),
    "stopped.py": code(
        '''
        import asyncio, pathlib, time

        @tool
        async def nap(note: str) -> None:
            """Nap."""
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pathlib.Path(note).write_text("cancelled")
                raise
            return "woke"

        @tool
        def look(note: str, context: Context) -> str:
            """Look."""
            while not context.cancelled:
                time.sleep(0.01)
            pathlib.Path(note).write_text("seen")
            return "seen"

        @tool(runs_in="process")
        def spin() -> str:
            """Spin."""
            while True:
                pass
        '''
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostedFolder]:
    """One host for all: no test changes a file."""
    async with hosted(tmp_path_factory.mktemp("tools"), FILES) as folder:
        yield folder


async def test_functions_of_every_kind_are_tools(folder: HostedFolder) -> None:
    """Async and plain ones, and such that compute: each with its schema, its effect, and a context if it wants one."""
    counted = await folder.call("count", day=3)
    computed = [(await folder.call("compute", n=10)).result for _ in range(2)]
    whose = await folder.client.send("owls.whose", {}, user_id="ada")

    assert counted.result["day"] == 3
    assert counted.result["pid"] not in {os.getpid(), *(pid for _, pid in computed)}
    assert [each for each, _ in computed] == [45, 45]
    assert computed[0][1] == computed[1][1], "a process that has answered is used again"
    assert whose.result == "ada's"
    definition = folder.host.tools["owls.count"].definition
    assert (definition.effect, definition.tags) == ("read", ["birds"])
    assert definition.input_schema is not None
    assert definition.input_schema["properties"] == {"day": {"description": "Of the year.", "type": "integer"}}


async def test_the_guides_file_works_as_it_stands(folder: HostedFolder) -> None:
    """Both of its tools are called, and so is the one of the page on production."""
    assert (await folder.call("count_wood", wood="Sherwood")).result == 8
    assert (await folder.call("count_day", day=3)).result == {"owls": 5}
    assert (await folder.call("primes", below=20)).result == 8


async def test_what_is_known_of_a_tool_is_in_the_manifest(folder: HostedFolder) -> None:
    """Its file, what that is imported as, and its content's digest, which is the tool's version too."""
    sources = {each.tool_name: each for each in folder.host.manifest.sources or []}
    source, definition = sources["owls.greet"], folder.host.tools["owls.greet"].definition

    assert sources.keys() == folder.host.tools.keys()
    assert source.file == str(folder.path / "greet.py")
    assert source.python_module == "_toolfleet_tools.greet"
    assert definition.code_digest == source.digest
    assert source.digest.startswith(str(definition.version))


async def test_a_files_tool_may_ask_for_an_approval(folder: HostedFolder) -> None:
    """Of admins, or of whom it names; the process of the tools passes it on as it stands."""
    asked = {name: approvers_of(folder.host.tools[f"owls.{name}"].definition.approval) for name in ("pay", "refund")}
    who = Approvers(permission="owner", users=frozenset({"bob", "carol"}))
    assert asked == {"pay": (Approvers(permission="admin"),), "refund": (who,)}


async def test_what_a_tool_raises_means_what_it_means_in_a_module(folder: HostedFolder) -> None:
    """Words for the model, being busy, and a bug, whose text stays in the log."""
    refused, busy, bug = [await folder.call(name) for name in ("refuse", "busy", "bug")]

    assert (refused.error, refused.effect_state, refused.retryable) == ("Not by day.", "none", True)
    assert (busy.status, busy.retry_after_seconds) == (503, 7)
    assert bug.error == "owls.bug failed inside the module (KeyError); its log says why."


async def test_files_import_each_other(folder: HostedFolder) -> None:
    """By relative imports, and those that begin with `_` are there for that."""
    assert (await folder.call("where")).result == "tower caw"


async def test_a_call_is_stopped_when_nobody_waits(folder: HostedFolder, tmp_path: Path) -> None:
    """An async tool is cancelled, a plain one sees it, and one that computes is ended: the next calls run as ever."""
    notes = {name: tmp_path / name for name in ("nap", "look")}
    *_, spun = await asyncio.gather(
        *(folder.client.send(f"owls.{name}", {"note": str(note)}, seconds=1) for name, note in notes.items()),
        folder.client.send("owls.spin", {}, seconds=1),
    )

    assert (spun.success, spun.effect_state) == (False, "unknown")
    await wait_until(lambda: all(note.exists() for note in notes.values()), "both tools have seen it")
    assert {name: note.read_text() for name, note in notes.items()} == {"nap": "cancelled", "look": "seen"}
    assert (await folder.call("greet", name="Ada")).result == "hoot Ada"


async def test_files_are_imported_with_their_first_call_where_that_is_wanted(tmp_path: Path) -> None:
    """The manifest is complete before; a process that has run none of a file's tools has not imported it."""
    imported = tmp_path / "imported"
    owls = code(f'''
        import os, pathlib
        with pathlib.Path({str(imported)!r}).open("a") as file:
            file.write(f"{{os.getpid()}}\\n")

        @tool
        def pid() -> int:
            """Say which."""
            return os.getpid()
    ''')
    async with hosted(tmp_path / "tools", {"owls.py": owls, "crows.py": GREET}, is_lazy=True) as folder:
        before = imported.read_text().split()
        assert (await folder.call("greet", name="Ada")).result == "hoot Ada"
        assert imported.read_text().split() == before

        pid = (await folder.call("pid")).result

        assert imported.read_text().split() == [*before, str(pid)]
        assert str(pid) not in before
