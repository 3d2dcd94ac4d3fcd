"""How the files of a tool folder are read."""

from pathlib import Path

import pytest

from toolfleet_modules.hosts.folder.source_files import MOST_BYTES, FolderUnreadable, SourceFolder, nothing_in

TOOL = "@tool\ndef f(): ...\n"


def test_files_with_a_tool_are_told_from_others(tmp_path: Path) -> None:
    """By what decorates their functions; what begins with `_` is there for others to import."""
    texts = {
        "bare.py": TOOL,
        "facts.py": "@tool(effect='read')\nasync def f(): ...",
        "dotted.py": "@sdk.tool\ndef f(): ...",
        "made.py": "f = tool(effect='read')(g)",
        "called.py": "f = tool(g)",
        "plain.py": "def f(): ...",
        "other.py": "@lru_cache\ndef f(): ...",
        "_helper.py": TOOL,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    files = SourceFolder(tmp_path).read().files

    assert {name for name, each in files.items() if each.has_tools} == {
        "bare.py",
        "facts.py",
        "dotted.py",
        "made.py",
        "called.py",
    }
    assert set(files) == set(texts)


def test_what_is_no_source_is_left_out(tmp_path: Path) -> None:
    """Hidden files, drafts of editors, other kinds, and what lies deeper; a folder of Python files is named."""
    for name in ("deeper", "tests", "_own", ".git", "data"):
        (tmp_path / name).mkdir()
    for name in (
        ".hidden.py",
        "owls.py~",
        "owls.txt",
        "owls.pyc",
        "__init__.py",
        "deeper/owls.py",
        "tests/a.py",
        "_own/a.py",
        "data/a.csv",
    ):
        (tmp_path / name).write_text(TOOL)

    reading = SourceFolder(tmp_path).read()

    assert reading.files == {}
    assert {name: each.kind for name, each in reading.faults.items()} == {"deeper": "NoTools"}


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("plain.py", "def f(): ...", "NoTools"),
        ("nested.py", "if True:\n    @tool\n    def f(): ...", "NoTools"),
        ("method.py", "class A:\n    @tool\n    def f(self): ...", "NoTools"),
        ("importing.py", "from langchain_core.tools import BaseTool", "NoTools"),
        ("empty.py", "", "NoTools"),
        ("marked.py", TOOL, "InvalidTool"),
        ("_helper.py", TOOL, None),
        ("test_marked.py", "def test_it(): ...", None),
        ("marked_test.py", "def test_it(): ...", None),
        ("conftest.py", "", None),
    ],
)
def test_a_file_that_offers_no_tools_is_named(tmp_path: Path, name: str, text: str, kind: str | None) -> None:
    """Nothing is wrong with it unless it marks something as a tool; files for others, and those of pytest, are not named."""
    (tmp_path / name).write_text(text)

    fault = nothing_in(SourceFolder(tmp_path).read().files[name])

    assert (fault and fault.kind) == kind


@pytest.mark.parametrize(
    "statement",
    [
        "import langchain_core.tools",
        "import re, langchain as lc",
        "from langchain.tools import tool as mark",
        "from langchain_community.tools import ShellTool",
    ],
)
def test_a_file_that_imports_langchain_may_have_tools(tmp_path: Path, statement: str) -> None:
    """It may make them in many ways, so it is imported to find out."""
    (tmp_path / "made.py").write_text(statement)
    (tmp_path / "other.py").write_text(statement.replace("langchain", "longchain"))

    files = SourceFolder(tmp_path).read().files

    assert {name: each.has_tools for name, each in files.items()} == {"made.py": True, "other.py": False}


def test_each_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """In one sentence, with its line where there is one; the others are not touched by it."""
    (tmp_path / "good.py").write_text(TOOL)
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "nulls.py").write_bytes(b"x = 1\0")
    (tmp_path / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (tmp_path / "negative.py").write_text("x = " + "-" * 200_000 + "1")
    (tmp_path / "two words.py").write_text(TOOL)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "lost.py").symlink_to("nowhere.py")
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(50 * 2**20)

    reading = SourceFolder(tmp_path).read()

    kinds = {name: (fault.kind, fault.line) for name, fault in reading.faults.items()}
    assert kinds == {
        "broken.py": ("SyntaxError", 2),
        "binary.py": ("SyntaxError", None),
        "nulls.py": ("SyntaxError", None),
        "deep.py": ("SyntaxError", kinds["deep.py"][1]),
        "negative.py": ("SyntaxError", kinds["negative.py"][1]),
        "two words.py": ("FileRefused", None),
        "folder.py": ("FileRefused", None),
        "lost.py": ("FileRefused", None),
        "large.py": ("FileRefused", None),
    }
    assert str(MOST_BYTES) in reading.faults["large.py"].message
    assert set(reading.files) == {"good.py"}


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Also one by way of a folder; a link inside of it is as a file."""
    outside = tmp_path / "outside.py"
    outside.write_text(TOOL)
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "out.py").symlink_to(outside)
    (folder / "relative.py").symlink_to("../outside.py")
    (folder / "real.py").write_text(TOOL)
    (folder / "inside.py").symlink_to("real.py")

    reading = SourceFolder(folder).read()

    assert {name: fault.kind for name, fault in reading.faults.items()} == {
        "out.py": "SecurityError",
        "relative.py": "SecurityError",
    }
    assert set(reading.files) == {"real.py", "inside.py"}


def test_a_folder_may_be_a_link_itself(tmp_path: Path) -> None:
    """As deployments have them; its files keep the path that it was named by."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "owls.py").write_text(TOOL)
    (tmp_path / "tools").symlink_to("v1")

    reading = SourceFolder(tmp_path / "tools").read()

    assert [each.path for each in reading.files.values()] == [tmp_path / "tools" / "owls.py"]


def test_a_file_is_read_again_when_it_has_changed_only(tmp_path: Path) -> None:
    """The same reading gives the same objects; another content gives another digest."""
    (tmp_path / "owls.py").write_text(TOOL)
    (tmp_path / "crows.py").write_text(TOOL)
    folder = SourceFolder(tmp_path)
    first = folder.read()
    again = folder.read()
    (tmp_path / "owls.py").write_text(TOOL + "x = 1\n")
    third = folder.read()

    assert again == first
    assert all(again.files[name] is each for name, each in first.files.items())
    assert third.files["crows.py"] is first.files["crows.py"]
    assert third.files["owls.py"].digest != first.files["owls.py"].digest
    (tmp_path / "owls.py").unlink()
    assert set(folder.read().files) == {"crows.py"}


def test_a_folder_that_cannot_be_listed_is_one_clear_error(tmp_path: Path) -> None:
    """One that is not there, and one that is a file."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(FolderUnreadable, match=f"{path.name} cannot be read: N"):
            SourceFolder(path).read()
