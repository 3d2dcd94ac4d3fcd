"""Files of a tool folder that do not load: each is one clear error, and costs the others nothing."""

import textwrap
from pathlib import Path

import pytest

from support.hosts.tool_folder import GREET, HEAD, hosted
from support.waiting import wait_until

pytestmark = pytest.mark.asyncio

TOOL = '''
@tool
def {name}() -> str:
    """Do it."""
    return "done"
'''


def tool(name: str, before: str = "") -> str:
    return HEAD + textwrap.dedent(before) + TOOL.format(name=name)


async def test_each_broken_file_is_one_error_and_the_others_are_served(tmp_path: Path) -> None:
    """Whatever is wrong with it: it does not parse, raises, ends the process, or has what is no tool."""
    files = {
        "good.py": GREET,
        "syntax.py": tool("a") + "def (",
        "missing.py": tool("b", "import no_such_package"),
        "raising.py": tool("c", "x = 1 / 0"),
        "exiting.py": tool("d", "raise SystemExit(3)"),
        "killed.py": tool("e", "import os\nos._exit(3)"),
        "crashing.py": tool("f", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
        "untyped.py": HEAD + "\n@tool\ndef g(x):\n    '''G.'''\n",
        "yielding.py": HEAD + "\n@tool\ndef h() -> str:\n    '''H.'''\n    yield 'x'\n",
        "misnamed.py": HEAD + "\n@tool(name='no name')\ndef i() -> str:\n    '''I.'''\n",
        "unknown.py": HEAD + "\n@tool(colour='red')\ndef j() -> str:\n    '''J.'''\n",
    }
    async with hosted(tmp_path, files, security="off") as folder:
        assert set(folder.host.tools) == {"owls.greet"}
        assert folder.errors() == {
            "syntax.py": ("SyntaxError", "none"),
            "missing.py": ("ImportError", "none"),
            "raising.py": ("ZeroDivisionError", "none"),
            "exiting.py": ("SystemExit", "none"),
            "killed.py": ("ProcessEnded", "none"),
            "crashing.py": ("ProcessEnded", "none"),
            "untyped.py": ("InvalidTool", "none"),
            "yielding.py": ("InvalidTool", "none"),
            "misnamed.py": ("InvalidTool", "none"),
            "unknown.py": ("InvalidTool", "none"),
        }
        said = {Path(e.file).name: e for e in folder.host.manifest.load_errors or ()}
        assert "no_such_package" in said["missing.py"].message
        assert said["raising.py"].line == 2
        assert "SIGSEGV" in said["crashing.py"].message
        assert "'x'" in said["untyped.py"].message


async def test_a_file_that_never_ends_importing_is_given_up(tmp_path: Path) -> None:
    """After its time; it is not tried again until it is another."""
    files = {"good.py": GREET, "hanging.py": tool("a", "import time\ntime.sleep(600)")}
    async with hosted(tmp_path, files, load_seconds=1, security="off") as folder:
        assert set(folder.host.tools) == {"owls.greet"}
        assert folder.errors() == {"hanging.py": ("LoadTimeout", "none")}

        folder.write("more.py", tool("b"))
        await folder.wait_for_tools("greet", "b")
        assert folder.errors() == {"hanging.py": ("LoadTimeout", "none")}

        folder.write("hanging.py", tool("c"))
        await folder.wait_for_tools("greet", "b", "c")
        assert folder.errors() == {}


async def test_files_that_import_each_other_in_a_circle_are_errors(tmp_path: Path) -> None:
    """As Python has it: one sentence for each, and the others are served."""
    files = {
        "good.py": GREET,
        "one.py": tool("a", "from .two import b"),
        "two.py": tool("b", "from .one import a"),
    }
    async with hosted(tmp_path, files) as folder:
        assert set(folder.host.tools) == {"owls.greet"}
        assert {kind for kind, _ in folder.errors().values()} == {"ImportError"}
        assert set(folder.errors()) == {"one.py", "two.py"}


async def test_a_tool_that_two_files_have_is_the_first_ones(tmp_path: Path) -> None:
    """By the files' names; the other one is an error that names both, and its other tools are served."""
    files = {"a.py": tool("same"), "b.py": tool("same") + TOOL.format(name="other")}
    async with hosted(tmp_path, files) as folder:
        assert set(folder.host.tools) == {"owls.same", "owls.other"}
        assert folder.host.tools["owls.same"].stem == "a"
        assert folder.errors() == {"b.py": ("DuplicateTool", "current")}
        (error,) = folder.host.manifest.load_errors or []
        assert error.message == "owls.same is served from a.py, which had it first, and not from here."


async def test_a_new_file_takes_over_no_name_that_is_served(tmp_path: Path) -> None:
    """Also if its name comes first, and after a new start of the host; once the file that had it is gone, the new one is served."""
    path, kept = tmp_path / "tools", tmp_path / "state" / "owners.json"
    async with hosted(path, {"b.py": tool("same")}, owners_file=kept) as folder:
        assert not kept.exists()
        folder.write("a.py", tool("same") + TOOL.format(name="other"))
        await folder.wait_for_tools("same", "other")
        assert folder.host.tools["owls.same"].stem == "b"
        assert folder.errors() == {"a.py": ("DuplicateTool", "current")}

        before = folder.host.tools["owls.same"].definition.version
        folder.write("b.py", tool("same", "x = 1"))  # an edit of the file that has it
        await wait_until(lambda: folder.host.tools["owls.same"].definition.version != before, "reloaded")
        assert folder.host.tools["owls.same"].stem == "b"
        folder.write("b.py", "def (")
        await folder.wait_for_errors({"a.py": ("DuplicateTool", "current"), "b.py": ("SyntaxError", "previous")})
        assert folder.host.tools["owls.same"].stem == "b"
        folder.write("b.py", tool("same"))
        await folder.wait_for_errors({"a.py": ("DuplicateTool", "current")})

    async with hosted(path, {}, owners_file=kept) as folder:
        assert folder.host.tools["owls.same"].stem == "b"
        (path / "b.py").unlink()
        await folder.wait_for_errors({})
        assert folder.host.tools["owls.same"].stem == "a"
        assert not kept.exists()

    async with hosted(path, {"b.py": tool("same")}, owners_file=tmp_path / "other.json") as folder:
        assert folder.host.tools["owls.same"].stem == "a"  # by name, where nothing is known


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"owls.same": 3}', '{"owls.same": "gone"}'])
async def test_kept_owners_that_make_no_sense_count_for_nothing(tmp_path: Path, text: str) -> None:
    """The first file by name is served."""
    kept = tmp_path / "owners.json"
    kept.write_text(text)
    files = {"a.py": tool("same"), "b.py": tool("same")}
    async with hosted(tmp_path / "tools", files, owners_file=kept) as folder:
        assert folder.host.tools["owls.same"].stem == "a"


async def test_a_finding_is_a_warning_or_the_end_of_a_file(tmp_path: Path) -> None:
    """As the mode says: nothing, an error beside a file that is served, or a file that is not even imported."""
    note = tmp_path / "imported"
    files = {"good.py": GREET, "reading.py": tool("a", f"import os\nopen({str(note)!r}, 'w').close()")}
    async with hosted(tmp_path / "off", files, security="off") as folder:
        assert (set(folder.host.tools), folder.errors()) == ({"owls.greet", "owls.a"}, {})
    note.unlink()
    async with hosted(tmp_path / "warn", files, security="warn") as folder:
        assert set(folder.host.tools) == {"owls.greet", "owls.a"}
        assert folder.errors() == {"reading.py": ("SecurityError", "current")}
    note.unlink()
    async with hosted(tmp_path / "strict", files, security="strict") as folder:
        assert set(folder.host.tools) == {"owls.greet"}
        assert folder.errors() == {"reading.py": ("SecurityError", "none")}
        assert not note.exists()


async def test_a_folder_that_goes_away_leaves_its_tools(tmp_path: Path) -> None:
    """It is an error until it is back; then it is read as it is."""
    async with hosted(tmp_path / "tools", {"owls.py": GREET}) as folder:
        folder.path.rename(tmp_path / "elsewhere")
        await folder.wait_for_errors({"tools": ("FolderUnreadable", "previous")})
        assert (await folder.call("greet", name="Ada")).success

        (tmp_path / "elsewhere").rename(folder.path)
        await folder.wait_for_errors({})
        folder.write("crows.py", tool("caw"))
        await folder.wait_for_tools("greet", "caw")


@pytest.mark.parametrize(
    ("text", "security", "expected"),
    [
        (tool("a", "import sys\nsys.exit(3)"), "warn", {"SystemExit": "none", "SecurityError": "none"}),
        (tool("a", "import os"), "warn", {"SecurityError": "current"}),
        (tool("a", "import os"), "strict", {"SecurityError": "none"}),
        (tool("greet", "import os"), "warn", {"DuplicateTool": "none", "SecurityError": "none"}),
        (
            tool("greet", "import os") + TOOL.format(name="b"),
            "warn",
            {"DuplicateTool": "current", "SecurityError": "current"},
        ),
        ("import os\ndef f(): ...", "warn", {"NoTools": "current", "SecurityError": "current"}),
        ("import os\ndef f(): ...", "strict", {"SecurityError": "none"}),
        ("def f(): ...", "warn", {"NoTools": "current"}),
        ("def f(:", "warn", {"SyntaxError": "none"}),
    ],
)
async def test_all_that_is_said_of_a_file_has_one_state(
    tmp_path: Path, text: str, security: str, expected: dict[str, str]
) -> None:
    """Either something of it is served as it stands, or nothing is, whatever is wrong with it."""
    async with hosted(tmp_path, {"a_good.py": GREET, "b_other.py": text}, security=security) as folder:
        errors = folder.host.manifest.load_errors or []
        assert {Path(each.file).name for each in errors} == {"b_other.py"}
        assert {each.error_type: each.in_effect for each in errors} == expected


async def test_a_broken_edit_leaves_one_state_too(tmp_path: Path) -> None:
    """The version before is in effect, in all that is said of the file."""
    async with hosted(tmp_path, {"a.py": tool("a", "import os")}) as folder:
        folder.write("a.py", tool("a", "import os\nx = 1 / 0"))
        await wait_until(lambda: len(folder.host.manifest.load_errors or ()) == 2, "both are listed")

        errors = folder.host.manifest.load_errors or []
        assert {each.error_type: each.in_effect for each in errors} == {
            "ZeroDivisionError": "previous",
            "SecurityError": "previous",
        }
