"""Finds the programs in the documents: each is under a comment that gives its name, in the page or in a file that it shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PROGRAM = re.compile(
    r"^<!-- program: (?P<name>[a-z-]+) -->\n```(?: \{ \.)?(?P<language>python|sh|toml|ts)(?: \})?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_SHOWN_FILE = re.compile(r'--8<-- "(?P<path>[\w./-]+)"\n')


def programs(page: str, *, language: str = "") -> dict[str, str]:
    """A page's programs by their names, or those in a language; raises ValueError for a name that is there twice."""
    matches = _PROGRAM.finditer((ROOT / page).read_text())
    found = [(match["name"], _shown(match["text"])) for match in matches if language in {"", match["language"]}]
    if len(found) != len(dict(found)):
        raise ValueError(f"{page} has two programs of one name")
    return dict(found)


def pages() -> list[str]:
    """The README, every page of the site, and the pages of the examples, by their paths."""
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/*.md")]
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in found)]


def _shown(text: str) -> str:
    """The text of the file that a page shows in place of a program of its own."""
    named = _SHOWN_FILE.fullmatch(text)
    return (ROOT / named["path"]).read_text() if named else text
