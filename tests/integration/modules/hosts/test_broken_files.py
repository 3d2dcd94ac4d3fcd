"""Files of a tool folder that do not load: each is one clear error, and costs the others nothing."""

import textwrap
from pathlib import Path

import pytest

from support.hosts.tool_folder import GREET, HEAD, hosted
from support.waiting import wait_until
from toolfleet_modules.hosts import host
from toolfleet_modules.hosts.folder.generation import owners_in

pytestmark = pytest.mark.asyncio

TOOL = '''
@tool
def {name}() -> str:
    """Do it."""
    return "done"
'''


def tool(name: str, before: str = "") -> str:
    return HEAD + textwrap.dedent(before) + TOOL.format(name=name)


BROKEN: dict[str, tuple[str, str]] = {
    "syntax.py": (tool("a") + "def (", "SyntaxError"),
    "missing.py": (tool("b", "import no_such_package"), "ImportError"),
    "raising.py": (tool("c", "x = 1 / 0"), "ZeroDivisionError"),
    "exiting.py": (tool("d", "raise SystemExit(3)"), "SystemExit"),
    "killed.py": (tool("e", "import os\nos._exit(3)"), "ProcessEnded"),
    "crashing.py": (tool("f", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"), "ProcessEnded"),
    "untyped.py": (HEAD + "\n@tool\ndef g(x):\n    '''G.'''\n", "InvalidTool"),
    "yielding.py": (HEAD + "\n@tool\ndef h() -> str:\n    '''H.'''\n    yield 'x'\n", "InvalidTool"),
    "misnamed.py": (HEAD + "\n@tool(name='no name')\ndef i() -> str:\n    '''I.'''\n", "InvalidTool"),
    "unknown.py": (HEAD + "\n@tool(colour='red')\ndef j() -> str:\n    '''J.'''\n", "InvalidTool"),
    "circle.py": (tool("k", "from .other import l"), "ImportError"),
    "other.py": (tool("l", "from .circle import k"), "ImportError"),
}


async def test_each_broken_file_is_one_error_and_the_others_are_served(tmp_path: Path) -> None:
    """Whatever is wrong with it: it does not parse, raises, ends the process, imports in a circle, or has what is no tool."""
    files = {"good.py": GREET, **{name: text for name, (text, _) in BROKEN.items()}}
    async with hosted(tmp_path, files, security="off") as folder:
        assert set(folder.host.tools) == {"owls.greet"}
        assert folder.errors() == {name: (kind, "none") for name, (_, kind) in BROKEN.items()}
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


async def test_a_new_file_takes_over_no_name_that_is_served(tmp_path: Path) -> None:
    """Also if its name comes first, and after a new start of the host; once the file that had it is gone, the new one is served."""
    path, kept = tmp_path / "tools", tmp_path / "state" / "owners.json"
    async with hosted(path, {"b.py": tool("same")}, owners_file=kept) as folder:
        assert not kept.exists()
        folder.write("a.py", tool("same") + TOOL.format(name="other"))
        await folder.wait_for_tools("same", "other")
        assert folder.host.tools["owls.same"].stem == "b"
        assert folder.errors() == {"a.py": ("DuplicateTool", "current")}
        (error,) = folder.host.manifest.load_errors or []
        assert error.message == "owls.same is served from b.py, which had it first, and not from here."

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

    (tmp_path / "other.json").write_text('{"owls.same": "gone"}')
    async with hosted(path, {"b.py": tool("same")}, owners_file=tmp_path / "other.json") as folder:
        assert folder.host.tools["owls.same"].stem == "a"  # by name, where nothing is known of any file that is there


@pytest.mark.parametrize("text", ["", "[1]", "{"])
async def test_kept_owners_that_make_no_sense_count_for_nothing(tmp_path: Path, text: str) -> None:
    """It is as if nothing were known."""
    (tmp_path / "owners.json").write_text(text)
    assert owners_in(tmp_path / "owners.json") == {}


async def test_a_folder_that_goes_away_leaves_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error until it is back; then it is read as it is."""
    monkeypatch.setattr(host, "_RESCAN_SECONDS", 0.2)
    monkeypatch.setattr(host, "_RETURN_SECONDS", 0.1)
    async with hosted(tmp_path / "tools", {"owls.py": GREET}) as folder:
        folder.path.rename(tmp_path / "elsewhere")
        await folder.wait_for_errors({"tools": ("FolderUnreadable", "previous")})
        assert (await folder.call("greet", name="Ada")).success

        (tmp_path / "elsewhere").rename(folder.path)
        await folder.wait_for_errors({})
        folder.write("crows.py", tool("caw"))
        await folder.wait_for_tools("greet", "caw")


NOTING = "import os, pathlib\npathlib.Path(__file__).with_suffix('.imported').touch()"
TAKEN = tool("greet", "import os")
SAID: dict[str, tuple[str, str, str]] = {
    # A file's text, what is wrong with it, and what is in effect of it where a finding is a warning.
    "exit.py": (tool("b", "import sys\nsys.exit(3)"), "SystemExit SecurityError", "none"),
    "found.py": (tool("c", NOTING), "SecurityError", "current"),
    "taken.py": (TAKEN, "DuplicateTool SecurityError", "none"),
    "taken_in_part.py": (TAKEN + TOOL.format(name="d"), "DuplicateTool SecurityError", "current"),
    "toolless.py": ("import os\ndef f(): ...", "NoTools SecurityError", "current"),
    "plain.py": ("def f(): ...", "NoTools", "current"),
    "wrong.py": ("def f(:", "SyntaxError", "none"),
}


def said_of(wrong: str, in_effect: str, security: str) -> dict[str, str]:
    """Return what is in effect of a file by each of its faults; a finding is the only one in strict mode, and ends it."""
    is_refused = security == "strict" and "SecurityError" in wrong
    return {"SecurityError": "none"} if is_refused else dict.fromkeys(wrong.split(), in_effect)


@pytest.mark.parametrize("security", ["warn", "strict"])
async def test_all_that_is_said_of_a_file_has_one_state(tmp_path: Path, security: str) -> None:
    """Either something of it is served as it stands, or nothing is; in strict mode a file with a finding is not even imported."""
    files = {"a_good.py": GREET, **{name: text for name, (text, *_) in SAID.items()}}
    async with hosted(tmp_path, files, security=security) as folder:
        said: dict[str, dict[str, str]] = {}
        for each in folder.host.manifest.load_errors or []:
            said.setdefault(Path(each.file).name, {})[each.error_type] = each.in_effect
        assert said == {name: said_of(wrong, in_effect, security) for name, (_, wrong, in_effect) in SAID.items()}
        assert set(folder.host.tools) == {"owls.greet"} | ({"owls.c", "owls.d"} if security == "warn" else set())
        assert (tmp_path / "found.imported").exists() is (security == "warn")


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
