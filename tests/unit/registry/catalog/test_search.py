"""Finding tools by words and tags."""

import gc
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from toolfleet_registry.catalog.catalog import ToolSearch
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.manifests.manifest_cache import SeenTool, seen_tools
from toolfleet_registry.searching import SearchDocument, TextIndex

TOOLS: list[dict[str, Any]] = [
    {"name": "mail.send_invoice", "description": "Send a bill to a customer.", "tags": ["Money", "mail"]},
    {"name": "mail.send", "description": "Send a letter. Invoices have a tool of their own.", "tags": ["mail"]},
    {"name": "git.createIssue", "description": "Report a defect.", "tags": []},
    {
        "name": "calendar.add",
        "description": "Enter an appointment.",
        "parameters": [{"name": "invitees", "type": "array", "description": "Who gets an invitation."}],
    },
    {"name": "übersetzer.los", "description": "Überträgt Texte in andere Sprachen, auch 日本語.", "tags": ["sprache"]},
]


def seen(*tools: dict[str, Any]) -> list[SeenTool]:
    definitions = [ToolDefinition.model_validate(tool) for tool in tools]
    return list(seen_tools(ModuleManifest(module_name="any", tools=definitions), {}))


@pytest.fixture(scope="module")
def index() -> ToolSearch:
    return ToolSearch(seen(*TOOLS))


def found(index: ToolSearch, text: str, *tags: str, limit: int = 20, never: str = "") -> list[str]:
    tools = index.find(text, may=lambda tool: tool.definition.name != never, tags=frozenset(tags), limit=limit)
    return [tool.definition.name for tool in tools]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("invoice", ["mail.send_invoice", "mail.send"]),  # in a name it counts most
        ("invoices", ["mail.send_invoice", "mail.send"]),  # one or many
        ("INVOICE", ["mail.send_invoice", "mail.send"]),
        ("send bill", ["mail.send_invoice", "mail.send"]),  # the more words the better
        ("issue", ["git.createIssue"]),  # the hump in a name
        ("createissue", ["git.createIssue"]),
        ("invit", ["calendar.add"]),  # the beginning of a word, in an argument
        ("übertr", ["übersetzer.los"]),
        ("ubertragt", ["übersetzer.los"]),  # without its dots
        ("mail.send_invoice", ["mail.send_invoice", "mail.send"]),
        ("money", ["mail.send_invoice"]),  # a tag
        ("owl", []),
        ("... ---", []),  # no word at all
    ],
)
def test_tools_are_found_by_words(index: ToolSearch, text: str, expected: list[str]) -> None:
    """In names, tags, descriptions and arguments; the best first."""
    assert found(index, text)[: len(expected) or None] == expected


def test_common_words_are_looked_for_only_alone(index: ToolSearch) -> None:
    """They are in nearly every text: to find them says nothing, and takes long."""
    assert found(index, "I want a defect of mine to be reported") == ["git.createIssue"]
    assert found(index, "of") == ["mail.send"]


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        ("", ["mail"], ["mail.send", "mail.send_invoice"]),  # by name
        ("", ["MAIL", "money"], ["mail.send_invoice"]),  # all of them
        ("bill", ["mail"], ["mail.send_invoice"]),
        ("issue", ["mail"], []),
        ("", ["nothing"], []),
    ],
)
def test_tags_narrow_it_down(index: ToolSearch, text: str, tags: list[str], expected: list[str]) -> None:
    """With and without words."""
    assert found(index, text, *tags) == expected


def test_what_a_caller_may_not_use_is_not_found(index: ToolSearch) -> None:
    """And takes no place of what it may."""
    assert found(index, "invoice", limit=1, never="mail.send_invoice") == ["mail.send"]


@pytest.mark.parametrize(
    "text",
    [
        '"',
        "a AND b",
        "NEAR(a b)",
        "name:send",
        "send*",
        "-send",
        "(",
        "'; DROP TABLE tools; --",
        "\ud800",
        "\x00",
        "^send",
    ],
)
def test_no_question_is_a_language(index: ToolSearch, text: str) -> None:
    """What means something to the index means nothing in a model's words."""
    assert isinstance(found(index, text), list)


def test_a_book_is_no_question(index: ToolSearch) -> None:
    """Only its beginning counts, and it takes no time."""
    assert found(index, "invoice " + "owl" * 10**6)[0] == "mail.send_invoice"


def test_a_hostile_description_is_indexed_in_part() -> None:
    """What a module writes may be long, and have characters that nothing can carry."""
    index = ToolSearch(seen({"name": "a.b", "description": "owl " * 10**6 + "needle", "tags": ["\udfff"]}))

    assert found(index, "owl") == ["a.b"]
    assert found(index, "needle") == []


def test_many_threads_may_ask(index: ToolSearch) -> None:
    """Each gets its own answer."""
    words = [("invoice", "mail.send_invoice"), ("defect", "git.createIssue"), ("appointment", "calendar.add")] * 150
    with ThreadPoolExecutor(9) as threads:
        answers = threads.map(lambda word: found(index, word)[0], [word for word, _ in words])
    assert [*answers] == [expected for _, expected in words]


def test_an_index_that_nobody_has_is_closed() -> None:
    """Also one that stands in a circle of references, as a catalog's does; from Python 3.13 an open one is warned of."""
    index = TextIndex([(SearchDocument("owls.find", (), "Find an owl.", {}), 1)])
    assert index.find("owl", may=lambda _: True) == [1]
    database = index._index
    index.itself = index  # type: ignore[attr-defined]
    del index
    gc.collect()

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")
