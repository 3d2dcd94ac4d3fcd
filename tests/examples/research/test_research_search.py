"""`search_docs`: finds passages, and takes any query for words only."""

from pathlib import Path

import pytest

from modules.documents import Document, read_documents, sections
from modules.research.docs_index import DocsIndex
from support.modules.example_modules import Module

GUIDE = """Introduction without a heading.

# Owls

Owls hunt at night.

## Retrying #

A failed hunt is retried once, after a short delay.

```sh
# this is no heading, but a comment
hoot --loud
```

## Feathers
"""


@pytest.fixture
def index() -> DocsIndex:
    return DocsIndex([Document("guide.md", GUIDE), Document("notes/other.md", "# Mice\n\nMice hide. Owls retry.")])


def test_a_document_is_split_at_its_headings() -> None:
    """Each section knows its line; a comment in a block of code is no heading."""
    found = sections(GUIDE)
    assert [(section.heading, section.line) for section in found] == [
        ("", 1),
        ("Owls", 3),
        ("Retrying", 7),
        ("Feathers", 16),
    ]
    assert "hoot --loud" in found[2].text


def test_the_best_passage_comes_first(index: DocsIndex) -> None:
    """With file, heading, line, and a piece of the text."""
    best, *_ = index.search("failed retry", 5)
    assert (best.path, best.heading, best.line) == ("guide.md", "Retrying", 7)
    assert "retried once" in best.snippet


def test_other_forms_of_a_word_are_found(index: DocsIndex) -> None:
    """'hunting' finds 'hunt'."""
    assert {passage.heading for passage in index.search("hunting", 5)} == {"Owls", "Retrying"}


def test_some_words_are_enough_if_all_are_nowhere(index: DocsIndex) -> None:
    """A model's query has words that no document has."""
    assert [passage.heading for passage in index.search("how do mice pay taxes", 5)] == ["Mice"]


def test_no_more_passages_than_asked_for(index: DocsIndex) -> None:
    """The best are kept."""
    assert len(index.search("owls", 5)) == 2
    assert len(index.search("owls", 1)) == 1


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        '"',
        '""""',
        "AND",
        "OR NOT",
        "NEAR(owls mice, 2)",
        "owls*",
        "heading: owls",
        "-owls",
        "^owls",
        "{path heading}: owls",
        "owls' OR '1'='1",
        "'; DROP TABLE passages; --",
        "owls)",
        "((((",
        "\0",
        "%_\\",
        "🦉",
        "\ud800",
        "a " * 10_000,
        "x" * 100_000,
    ],
)
def test_no_query_is_more_than_words(index: DocsIndex, query: str) -> None:
    """Nothing in it is taken for the search engine's own language, and the index stays whole."""
    index.search(query, 5)
    assert len(index.search("owls", 5)) == 2


def test_only_documents_of_the_project_are_read(tmp_path: Path) -> None:
    """Hidden folders, installed packages, links and other files are left out."""
    for path in ("README.md", "docs/Guide.MD", ".venv/lib/x.md", "node_modules/y.md", "docs/code.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("# x")
    (tmp_path / "link.md").symlink_to(tmp_path / "docs" / "code.py")
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "bytes.md").write_bytes(b"\xff")
    assert [document.path for document in read_documents(tmp_path)] == ["README.md", "bytes.md", "docs/Guide.MD"]


def test_no_documents_are_an_empty_index(tmp_path: Path) -> None:
    """Also if the folder is not there."""
    assert DocsIndex(read_documents(tmp_path / "nowhere")).search("owls", 5) == []


async def test_the_projects_own_documentation_is_found(research: Module) -> None:
    """Over real HTTP: a sentence of a guide in this clone."""
    reply = await research("search_docs", query="filter of system calls sandbox", max_results=3)
    best = reply["result"]["results"][0]
    assert best["path"] == "examples/modules/README.md"
    assert "no filter of system calls" in best["snippet"]
    assert best["line"] > 0


@pytest.mark.parametrize("max_results", [0, 21])
async def test_the_number_of_results_has_limits(research: Module, max_results: int) -> None:
    """Between 1 and 20."""
    reply = await research("search_docs", query="owls", max_results=max_results)
    assert "max_results" in reply["error"]
