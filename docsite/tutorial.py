"""Writes the tutorial: the programs of each chapter, which the tests run."""

import tomllib
from pathlib import Path

from docsite.wrapping import wrapped

PROGRAMS = Path("tests", "fundamentals", "programs")

_ROOT = Path(__file__).parents[1]
_HEAD = """# Tutorial

Learn one feature after the other. Copy the programs from `tests/fundamentals/programs`; each says what it prints. Start
their fleet in `tests/fundamentals/fleet` with `toolfleet up --module owls`.
"""


def tutorial_page() -> str:
    """Return the page: the fleet, and the programs of each chapter."""
    chapters = tomllib.loads((_ROOT / PROGRAMS / "contents.toml").read_text())["chapters"]
    fleet = [
        _shown(PROGRAMS.parent / "fleet" / name) for name in ("toolfleet.toml", "owl_functions.py", "owls/main.py")
    ]
    parts = [_HEAD, *(part for one in chapters for part in _chapter(one)), "## The fleet\n", *fleet]
    return wrapped("\n".join(parts))


def _chapter(chapter: dict[str, str]) -> list[str]:
    programs = (
        f"### {_title(name)}\n\n{_shown(PROGRAMS / chapter['folder'] / f'{name}.py')}" for name in chapter["programs"]
    )
    return [f"## {chapter['title']}\n", *programs]


def _title(name: str) -> str:
    title = f"{name.removeprefix('test_')}, tested" if name.startswith("test_") else name
    return title.replace("_", " ").capitalize()


def _shown(path: Path) -> str:
    language = path.suffix[1:].replace("py", "python")
    return f'``` {{ .{language} }}\n--8<-- "{path}"\n```\n'
