"""A tool folder as a module: its files' functions are tools, which run in a process of their own."""

import asyncio
import os
import textwrap
from pathlib import Path

import pytest

from support.documents import programs
from support.hosts.tool_folder import GREET, HEAD, hosted
from support.waiting import wait_until
from toolfleet_registry.contracts.tool_definition import Approvers, approvers_of

pytestmark = pytest.mark.asyncio


def code(text: str) -> str:
    return HEAD + textwrap.dedent(text)


EVERY_KIND = code(
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
)


async def test_functions_of_every_kind_are_tools(tmp_path: Path) -> None:
    """Async and plain ones, and such that compute: each with its schema, its effect, and a context if it wants one."""
    async with hosted(tmp_path, {"owls.py": EVERY_KIND}) as folder:
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


async def test_the_guides_file_works_as_it_stands(tmp_path: Path) -> None:
    """Both of its tools are called, and so is the one of the page on production."""
    production = programs("docs/operations/production.md")["folder-tool"].replace("count(", "count_wood(")
    files = {"guide.py": programs("docs/guides/tool-folders.md")["tool-folder"], "production.py": production}
    async with hosted(tmp_path, files) as folder:
        assert (await folder.call("count_wood", wood="Sherwood")).result == 8
        assert (await folder.call("count", day=3)).result == {"owls": 5}
        assert (await folder.call("primes", below=20)).result == 8


async def test_what_is_known_of_a_tool_is_in_the_manifest(tmp_path: Path) -> None:
    """Its file, what that is imported as, and its content's digest, which is the tool's version too."""
    async with hosted(tmp_path, {"owls.py": GREET}) as folder:
        (source,) = folder.host.manifest.sources or []
        definition = folder.host.tools["owls.greet"].definition

        assert (source.tool_name, source.file) == ("owls.greet", str(tmp_path / "owls.py"))
        assert source.python_module == "_toolfleet_tools.owls"
        assert definition.code_digest == source.digest
        assert source.digest.startswith(str(definition.version))


async def test_a_files_tool_may_ask_for_an_approval(tmp_path: Path) -> None:
    """Of admins, or of whom it names; the process of the tools passes it on as it stands."""
    source = code(
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
    )
    async with hosted(tmp_path, {"owls.py": source}) as folder:
        asked = {name: approvers_of(tool.definition.approval) for name, tool in folder.host.tools.items()}
        who = Approvers(permission="owner", users=frozenset({"bob", "carol"}))
        assert asked == {"owls.pay": (Approvers(permission="admin"),), "owls.refund": (who,)}


async def test_arguments_are_checked_as_a_modules_are(tmp_path: Path) -> None:
    """A wrong one is refused in words for a model, and nothing has happened."""
    async with hosted(tmp_path, {"owls.py": GREET}) as folder:
        wrong = await folder.call("greet", name=3)
        more = await folder.call("greet", name="Ada", age=3)

        assert (wrong.success, wrong.effect_state) == (False, "none")
        assert wrong.error is not None
        assert "name" in wrong.error
        assert more.error is not None
        assert "There is no such argument" in more.error


async def test_what_a_tool_raises_means_what_it_means_in_a_module(tmp_path: Path) -> None:
    """Words for the model, being busy, and a bug, whose text stays in the log."""
    owls = code(
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
    )
    async with hosted(tmp_path, {"owls.py": owls}) as folder:
        refused, busy, bug = [await folder.call(name) for name in ("refuse", "busy", "bug")]

        assert (refused.error, refused.effect_state, refused.retryable) == ("Not by day.", "none", True)
        assert (busy.status, busy.retry_after_seconds) == (503, 7)
        assert bug.error == "owls.bug failed inside the module (KeyError); its log says why."


async def test_files_import_each_other(tmp_path: Path) -> None:
    """By relative imports, and those that begin with `_` are there for that."""
    files = {
        "_names.py": "NAME = 'tower'\n",
        "owls.py": code('''
            from . import crows
            from ._names import NAME

            @tool
            def where() -> str:
                """Say where."""
                return f"{NAME} {crows.caw()}"
        '''),
        "crows.py": code('''
            @tool
            def caw() -> str:
                """Caw."""
                return "caw"
        '''),
    }
    async with hosted(tmp_path, files) as folder:
        assert set(folder.host.tools) == {"owls.where", "owls.caw"}
        assert (await folder.call("where")).result == "tower caw"


STOPPED = code(
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
)


async def test_a_call_is_stopped_when_nobody_waits(tmp_path: Path) -> None:
    """An async tool is cancelled, a plain one sees it, and one that computes is ended: the next calls run as ever."""
    async with hosted(tmp_path / "tools", {"owls.py": STOPPED}) as folder:
        notes = {name: tmp_path / name for name in ("nap", "look")}
        *_, spun = await asyncio.gather(
            *(folder.client.send(f"owls.{name}", {"note": str(note)}, seconds=3) for name, note in notes.items()),
            folder.client.send("owls.spin", {}, seconds=3),
        )

        assert (spun.success, spun.effect_state) == (False, "unknown")
        await wait_until(lambda: all(note.exists() for note in notes.values()), "both tools have seen it")
        assert {name: note.read_text() for name, note in notes.items()} == {"nap": "cancelled", "look": "seen"}


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
