"""The chapters of a report. Pure functions: what was read goes in, Markdown comes out."""

from collections.abc import Iterable, Sequence

from modules.documents import Document, sections
from modules.files import FileRecord

_LONGEST = 5


def overview(documents: Sequence[Document], files: Sequence[FileRecord]) -> str:
    """What the report counts."""
    words = sum(_words(document) for document in documents)
    return _table(
        ("what", "how many"),
        [("documents", len(documents)), ("words in them", words), ("files of the user", len(files))],
    )


def documents_by_size(documents: Sequence[Document]) -> str:
    """Each document, the longest first."""
    rows = [(document.path, _words(document), _headings(document)) for document in documents]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return _table(("document", "words", "headings"), rows)


def longest_sections(documents: Sequence[Document]) -> str:
    """The sections that most need splitting."""
    rows = [
        (section.heading, document.path, len(section.text.split()))
        for document in documents
        for section in sections(document.text)
    ]
    rows.sort(key=lambda row: (-row[2], row[1], row[0]))
    return _table(("section", "document", "words"), rows[:_LONGEST])


def files_by_name(files: Sequence[FileRecord]) -> str:
    """The user's files."""
    return _table(("file", "bytes"), [(entry.name, entry.size) for entry in files])


def _words(document: Document) -> int:
    return len(document.text.split())


def _headings(document: Document) -> int:
    return sum(1 for section in sections(document.text) if section.heading)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")
