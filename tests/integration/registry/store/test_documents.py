"""Checks every store of documents against one contract, for each kind of documents, wherever they are kept."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

import pytest
from redis import Redis

from support.there import there
from toolfleet_registry.agents.stored_profiles import PROFILES
from toolfleet_registry.api_keys import API_KEYS
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.store.documents import NOTHING_KEPT, Changed, DocumentKind, DocumentStore

OpenDocuments: TypeAlias = Callable[[DocumentKind], DocumentStore]


@pytest.fixture
def key_prefix() -> str:
    return "acme:"


@pytest.fixture(params=[API_KEYS, PROFILES], ids=["keys", "profiles"])
def documents_kind(request: pytest.FixtureRequest) -> DocumentKind:
    found: DocumentKind = request.param
    return found


@pytest.fixture
def store(documents: OpenDocuments, documents_kind: DocumentKind) -> DocumentStore:
    return documents(documents_kind)


def history_of(kind: DocumentKind, text: str) -> str:
    """The history that goes with an entry: without histories, it is the entry."""
    return f"history of {text}" if kind.has_history else text


def change(
    store: DocumentStore, kind: DocumentKind, name: str, text: str, *, before: str = "", is_silent: bool = False
) -> Changed:
    """Put an entry in the place of the one before; with an empty one, nothing is kept."""
    expected = history_of(kind, before) if before else ""
    history = history_of(kind, text) if text else ""
    return store.change(name, expected=expected, entry=text, history=history, is_silent=is_silent)


def test_what_one_process_keeps_another_reads(documents: OpenDocuments, documents_kind: DocumentKind) -> None:
    """All of it, as it was written."""
    one, other = documents(documents_kind), documents(documents_kind)
    assert change(one, documents_kind, "a", "äöü \n ☃") is Changed.DONE
    assert change(one, documents_kind, "b", "two") is Changed.DONE

    found = there(other.read())
    assert found.entries == {"a": "äöü \n ☃", "b": "two"}
    assert other.history("a") == history_of(documents_kind, "äöü \n ☃")
    assert other.histories() == {name: history_of(documents_kind, text) for name, text in found.entries.items()}


def test_what_is_not_as_expected_is_left(store: DocumentStore, documents_kind: DocumentKind) -> None:
    """A new document takes no other's place, a change goes by what was read, and what is gone does not come back."""
    assert change(store, documents_kind, "a", "first") is Changed.DONE
    before = there(store.read())

    assert change(store, documents_kind, "a", "second") is Changed.CONFLICT
    assert change(store, documents_kind, "a", "second", before="other") is Changed.CONFLICT
    assert change(store, documents_kind, "b", "second", before="first") is Changed.CONFLICT
    assert store.read(before.revision) is None
    assert (store.history("a"), store.history("b")) == (history_of(documents_kind, "first"), "")

    assert change(store, documents_kind, "a", "second", before="first") is Changed.DONE
    assert there(store.read()).entries == {"a": "second"}
    assert change(store, documents_kind, "a", "", before="second") is Changed.DONE
    assert change(store, documents_kind, "a", "third", before="second") is Changed.CONFLICT
    assert (there(store.read()).entries, store.histories()) == ({}, {})


def test_each_change_has_a_revision_of_its_own(documents: OpenDocuments, documents_kind: DocumentKind) -> None:
    """A reader with the latest one gets nothing, also where nothing was ever kept; a reader with an earlier one gets everything."""
    one, other = documents(documents_kind), documents(documents_kind)
    assert other.read(NOTHING_KEPT) is None
    seen = [there(other.read()).revision]
    for before, text in (("", "x"), ("x", "y"), ("y", ""), ("", "x")):
        assert change(one, documents_kind, "a", text, before=before) is Changed.DONE
        found = there(other.read(seen[-1]))
        assert other.read(found.revision) is None
        seen.append(found.revision)

    assert len(set(seen)) == 5
    assert other.read(seen[1]) is not None


def test_a_silent_change_is_no_news(store: DocumentStore, documents_kind: DocumentKind) -> None:
    """It is there for those who read anew."""
    change(store, documents_kind, "a", "x")
    before = there(store.read())
    assert change(store, documents_kind, "a", "y", before="x", is_silent=True) is Changed.DONE

    assert store.read(before.revision) is None
    after = there(store.read())
    assert (after.revision, after.entries) == (before.revision, {"a": "y"})


def test_there_is_an_end_to_documents(documents: OpenDocuments, documents_kind: DocumentKind) -> None:
    """Beyond it no new one is taken, until one is gone; of those that are there, changes are."""
    store = documents(replace(documents_kind, most=2))
    assert [change(store, documents_kind, name, "x") for name in "abc"] == [Changed.DONE, Changed.DONE, Changed.FULL]
    assert change(store, documents_kind, "a", "y", before="x") is Changed.DONE

    assert change(store, documents_kind, "a", "", before="y") is Changed.DONE
    assert change(store, documents_kind, "c", "x") is Changed.DONE
    assert there(store.read()).entries == {"b": "x", "c": "x"}


def test_documents_are_made_side_by_side(documents: OpenDocuments, documents_kind: DocumentKind) -> None:
    """By several threads and processes at once: each finds its place, and of those who make the same one, one does."""
    opened = [documents(documents_kind) for _ in range(3)]

    def add(number: int) -> tuple[Changed, Changed]:
        store = opened[number % 3]
        return change(store, documents_kind, f"own-{number}", "x"), change(store, documents_kind, "same", f"{number}")

    with ThreadPoolExecutor(3) as threads:
        own, same = zip(*threads.map(add, range(12)), strict=True)

    assert own == (Changed.DONE,) * 12
    assert sorted(same) == [Changed.CONFLICT] * 11 + [Changed.DONE]
    found = there(opened[0].read())
    assert len(found.entries) == 13
    assert found.entries["same"] == str(same.index(Changed.DONE))


def test_use_is_noted_once_a_minute(documents: OpenDocuments) -> None:
    """Not of documents that are gone, and without a change that others had to read."""
    store = documents(API_KEYS)
    change(store, API_KEYS, "a", "x")
    before = there(store.read())
    assert store.used() == {}

    store.note_used({"a": 1000, "gone": 1000})
    store.note_used({"a": 1059})
    assert store.used() == {"a": 1000}
    store.note_used({"a": 1060})
    assert store.used() == {"a": 1060}
    assert store.read(before.revision) is None
    change(store, API_KEYS, "a", "y", before="x", is_silent=True)
    assert store.used() == {"a": 1060}
    change(store, API_KEYS, "a", "", before="y")
    assert store.used() == {}


def test_a_history_outlives_its_entry(documents: OpenDocuments) -> None:
    """Until it is forgotten as well."""
    store = documents(PROFILES)
    assert store.change("a", expected="", history="h1", entry="e1") is Changed.DONE
    assert store.change("a", expected="h1", history="h2", entry="") is Changed.DONE
    assert (there(store.read()).entries, store.histories()) == ({}, {"a": "h2"})

    assert store.change("a", expected="h2", history="h3", entry="e3") is Changed.DONE
    assert there(store.read()).entries == {"a": "e3"}
    assert store.change("a", expected="h3", history="", entry="") is Changed.DONE
    assert (there(store.read()).entries, store.histories()) == ({}, {})


class TestDocumentsInRedis:
    """What others have written to their keys."""

    @pytest.fixture(params=["redis"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def redis(self, redis_url: str) -> Iterator[Redis]:
        with Redis.from_url(redis_url) as redis:
            yield redis

    def test_what_is_no_text_is_replaced_and_removed(
        self, store: DocumentStore, documents_kind: DocumentKind, redis: Redis
    ) -> None:
        """An operator is never kept from it."""
        names = documents_kind.names(Keys("acme:"))
        for key in {names.entries, names.histories or names.entries}:
            redis.hset(key, mapping={"a": b"\xff\xfe", "b": b"{\xc3"})

        assert store.change("a", expected=store.history("a"), entry="x") is Changed.DONE
        assert store.change("b", expected=store.history("b"), entry="", history="") is Changed.DONE
        assert there(store.read()).entries == {"a": "x"}

    def test_documents_without_a_revision_are_read_each_time(
        self, store: DocumentStore, documents_kind: DocumentKind, redis: Redis
    ) -> None:
        """A Redis that has lost it may have lost anything."""
        change(store, documents_kind, "a", "x")
        redis.delete(documents_kind.names(Keys("acme:")).revision)
        for _ in range(2):
            assert there(store.read(NOTHING_KEPT)).entries == {"a": "x"}
        assert there(store.read("lost")).entries == {"a": "x"}
