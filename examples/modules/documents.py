"""The Markdown documents below a folder, and the sections that their headings make."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
_MAX_DOCUMENTS = 2000
_MAX_DOCUMENT_BYTES = 2**20
_NOT_OURS = frozenset({"node_modules", "build", "dist", "site-packages"})
_HEADING = re.compile(r"#{1,6}\s+(.+)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Document:
    """`path` is relative to the folder that was searched."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text below it. `line` counts from 1; the text before any heading has the heading ''."""

    heading: str
    line: int
    text: str


def read_documents(root: Path) -> list[Document]:
    """Every Markdown file below `root`, sorted by path; hidden folders, links and installed packages left out."""
    documents: list[Document] = []
    for path in _paths(root):
        if len(documents) == _MAX_DOCUMENTS:
            break
        with contextlib.suppress(OSError):  # it was deleted a moment ago, or is not ours to read
            if path.stat().st_size <= _MAX_DOCUMENT_BYTES:
                documents.append(Document(path.relative_to(root).as_posix(), path.read_text("utf-8", "replace")))
    return documents


def sections(text: str) -> list[Section]:
    """Split at the headings, which do not count inside a fenced block of code."""
    found = [Section("", 1, "")]
    lines: list[str] = []
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _FENCE.match(line)
        if mark and mark[1].startswith(fence):  # a longer fence may hold shorter ones
            fence = "" if fence else mark[1]
        heading = None if fence else _HEADING.fullmatch(line)
        if heading:
            found[-1] = _with_text(found[-1], lines)
            found.append(Section(heading[1].rstrip(" #"), number, ""))
            lines = []
        else:
            lines.append(line)
    found[-1] = _with_text(found[-1], lines)
    return [section for section in found if section.heading or section.text]


def _with_text(section: Section, lines: list[str]) -> Section:
    return Section(section.heading, section.line, "\n".join(lines).strip())


def _paths(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        for name in sorted(files):
            path = Path(folder, name)
            if name.lower().endswith(".md") and path.is_file() and not path.is_symlink():
                yield path
