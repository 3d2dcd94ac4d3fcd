"""Writes the pages of the tutorial: each shows the programs of a chapter, which the tests run."""

import ast
import tomllib
from pathlib import Path

from docsite.wrapping import wrapped

PROGRAMS = Path("tests", "fundamentals", "programs")

_ROOT = Path(__file__).parents[1]
_HEAD = """# Tutorial

Programs of at most 40 lines. A test runs each of them as it stands, and checks what it prints. You can copy them from
`tests/fundamentals/programs`.

All of them run beside one small fleet. Its folder, `tests/fundamentals/fleet`, has a `toolfleet.toml`, a file of functions for the workers, and a
module `owls`. Start it there with `toolfleet up --module owls`.
"""


def tutorial_pages() -> dict[str, str]:
    """Return the pages by their paths in docs/: the beginning, and one for each chapter."""
    chapters = tomllib.loads((_ROOT / PROGRAMS / "contents.toml").read_text())["chapters"]
    lines = [f"{number}. [{one['title']}]({one['folder']}.md)" for number, one in enumerate(chapters, start=1)]
    fleet = [_shown(path) for path in ("toolfleet.toml", "owl_functions.py", "owls/main.py")]
    index = "\n".join([_HEAD, *lines, "\n## The fleet\n", *fleet])
    return {"tutorial/index.md": wrapped(index), **{f"tutorial/{one['folder']}.md": _page(one) for one in chapters}}


def _shown(name: str) -> str:
    path = PROGRAMS.parent / "fleet" / name
    return f'`{name}`:\n\n``` {{ .{path.suffix[1:].replace("py", "python")} }}\n--8<-- "{path}"\n```\n'


def _page(chapter: dict[str, str]) -> str:
    return wrapped(
        "\n".join([f"# {chapter['title']}\n", *(_program(chapter["folder"], name) for name in chapter["programs"])])
    )


def _program(folder: str, name: str) -> str:
    path = PROGRAMS / folder / f"{name}.py"
    docstring = ast.get_docstring(ast.parse((_ROOT / path).read_text())) or ""
    title = f"{name.removeprefix('test_')}, tested" if name.startswith("test_") else name
    return f'## {title.replace("_", " ").capitalize()}\n\n{docstring}\n\n``` {{ .python }}\n--8<-- "{path}"\n```\n'
