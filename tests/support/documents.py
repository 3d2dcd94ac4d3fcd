"""Finds the programs in the documents: each stands under a comment that gives its name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PROGRAM = re.compile(
    r"^<!-- program: (?P<name>[a-z-]+) -->\n```(?P<language>python|sh|toml|ts)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def programs(page: str, *, language: str = "") -> dict[str, str]:
    """A page's programs by their names, or those in a language; raises ValueError for a name that is there twice."""
    matches = _PROGRAM.finditer((ROOT / page).read_text())
    found = [(match["name"], match["text"]) for match in matches if language in {"", match["language"]}]
    if len(found) != len(dict(found)):
        raise ValueError(f"{page} has two programs of one name")
    return dict(found)


def pages() -> list[str]:
    """The README and every page of the site, by their paths."""
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
