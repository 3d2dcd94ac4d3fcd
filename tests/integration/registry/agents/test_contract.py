"""Checks agents' profiles, wherever they are kept."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

import pytest

from support.there import there
from toolfleet_registry.agents.stored_profiles import (
    KEPT_VERSIONS,
    LARGEST_BYTES,
    PROFILES,
    ProfileVersion,
    StoredProfiles,
    agent_seal,
)
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.errors import NoSuchProfile, OperationRefused, ProfileChanged
from toolfleet_registry.signing import SigningSettings, TextSeal
from toolfleet_registry.store.documents import DocumentKind, DocumentStore

OpenDocuments: TypeAlias = Callable[[DocumentKind], DocumentStore]
Stores: TypeAlias = Callable[[], DocumentStore]
UNSEALED = agent_seal(SigningSettings())
READER = AgentProfile(tools=("tag:reading",), permission_at_most="user", description="für die Eulen ☃")
WRITER = AgentProfile.model_validate({"middleware": [{"name": "acme.audit:Audit", "level": 3}], "mode": "all"})


@pytest.fixture
def key_prefix() -> str:
    return "acme:"


@pytest.fixture
def stores(documents: OpenDocuments) -> Stores:
    """Opens another store on the same data; but in memory, where it is the same."""
    return lambda: documents(PROFILES)


@pytest.fixture
def store(stores: Stores) -> DocumentStore:
    return stores()


def profiles_in(store: DocumentStore, seal: TextSeal = UNSEALED) -> StoredProfiles:
    return StoredProfiles(store, seal)


def in_force(store: DocumentStore, seal: TextSeal = UNSEALED) -> dict[str, AgentProfile | str | None]:
    read = profiles_in(store, seal).read()
    return {name: one.profile if isinstance(one, ProfileVersion) else one for name, one in read.items()}


def seal(key: str, *old_keys: str) -> TextSeal:
    return agent_seal(SigningSettings(signing_key=key * 4, signing_keys_old=tuple(old * 4 for old in old_keys)))


def test_what_one_process_puts_another_reads(stores: Stores) -> None:
    """All of it, with its number, when and by whom; own parameters of a middleware, too."""
    made = profiles_in(stores()).put("reader", READER, by="ada")
    profiles_in(stores()).put("writer", WRITER, by="bob")

    assert (made.version, made.by, made.profile) == (1, "ada", READER)
    assert profiles_in(stores()).read()["reader"] == made
    assert in_force(stores()) == {"reader": READER, "writer": WRITER}


def test_the_last_versions_are_kept(store: DocumentStore) -> None:
    """With their numbers, which go on also after a removal; an earlier one is put again as a new one."""
    profiles = profiles_in(store)
    for number in range(KEPT_VERSIONS + 2):
        profiles.put("reader", READER.model_copy(update={"description": str(number)}), by="ada")
    removed = profiles.remove("reader", by="bob")

    versions = profiles.versions("reader")
    assert [one.version for one in versions] == list(range(4, KEPT_VERSIONS + 4))
    assert (removed.version, removed.profile, removed.by) == (KEPT_VERSIONS + 3, None, "bob")
    assert in_force(store) == {}
    again = profiles.rollback("reader", 5, by="eve")
    assert (again.version, again.rolled_back_from) == (KEPT_VERSIONS + 4, 5)
    assert in_force(store) == {"reader": versions[1].profile}


def test_what_cannot_be_done_changes_nothing(store: DocumentStore) -> None:
    """One sentence says why."""
    profiles = profiles_in(store)
    profiles.put("reader", READER, by="ada")
    profiles.remove("reader", by="ada")
    before = there(store.read())
    refused: list[tuple[Callable[[], object], type[OperationRefused], str]] = [
        (lambda: profiles.remove("reader", by="ada"), NoSuchProfile, "no profile of agent 'reader'"),
        (lambda: profiles.remove("nobody", by="ada"), NoSuchProfile, "no profile of agent 'nobody'"),
        (lambda: profiles.versions("nobody"), NoSuchProfile, "no versions of agent 'nobody'"),
        (lambda: profiles.rollback("reader", 9, by="ada"), NoSuchProfile, "no version 9"),
        (lambda: profiles.rollback("nobody", 1, by="ada"), NoSuchProfile, "no version 1"),
        (lambda: profiles.rollback("reader", 2, by="ada"), OperationRefused, "was removed"),
        (lambda: profiles.put("a b", READER, by="ada"), OperationRefused, "cannot be named 'a b'"),
        (lambda: profiles.put("x", large(), by="ada"), OperationRefused, f"at most {LARGEST_BYTES} bytes"),
    ]
    for change, kind, words in refused:
        with pytest.raises(kind, match=words):
            change()

    assert store.read(before.revision) is None


def large() -> AgentProfile:
    return AgentProfile(tools=tuple(f"owls.{'x' * 200}{number}" for number in range(200)))


def test_a_change_that_expects_another_version_is_refused(store: DocumentStore) -> None:
    """Of two who have seen the same one the first wins; 0 stands for none."""
    profiles = profiles_in(store)
    assert profiles.put("reader", READER, by="ada", expected=0).version == 1
    assert profiles.put("reader", WRITER, by="ada", expected=1).version == 2
    for expected in (0, 1, 3):
        with pytest.raises(ProfileChanged, match="has version 2"):
            profiles.put("reader", READER, by="eve", expected=expected)
        with pytest.raises(ProfileChanged):
            profiles.remove("reader", by="eve", expected=expected)
    profiles.remove("reader", by="ada", expected=2)
    with pytest.raises(ProfileChanged, match="is not there"):
        profiles.put("reader", READER, by="eve", expected=2)

    assert profiles.rollback("reader", 2, by="ada", expected=0).version == 4


def test_changes_side_by_side_are_all_made(stores: Stores) -> None:
    """By several threads and processes at once: each has its number, and none is lost."""
    opened = [stores() for _ in range(3)]

    def put(number: int) -> int:
        while True:
            try:
                return profiles_in(opened[number % 3]).put("reader", READER, by=str(number)).version
            except OperationRefused:  # the others were faster five times
                continue

    with ThreadPoolExecutor(3) as threads:
        numbers = list(threads.map(put, range(12)))

    assert sorted(numbers) == list(range(1, 13))
    assert {one.by for one in profiles_in(stores()).versions("reader")} == {str(number) for number in range(12)}


def test_there_is_an_end_to_profiles(documents: OpenDocuments) -> None:
    """Of removed ones the versions give their place to new ones, the one that is so for the longest first."""
    store = documents(replace(PROFILES, most=2))
    profiles = profiles_in(store)
    for name in ("first", "second"):
        profiles.put(name, READER, by="ada")
    with pytest.raises(OperationRefused, match="agents' profiles already"):
        profiles.put("third", READER, by="ada")
    profiles.put("first", WRITER, by="ada")  # of one that is there another version finds a place
    profiles.remove("first", by="ada")

    profiles.put("third", READER, by="ada")
    assert sorted(in_force(store)) == ["second", "third"]
    with pytest.raises(NoSuchProfile):
        profiles.versions("first")


def test_what_cannot_be_read_counts_for_nothing(store: DocumentStore) -> None:
    """Also if only a field is unknown, by which a newer release might have narrowed it, or if it is another agent's."""
    profiles = profiles_in(store)
    profiles.put("reader", READER, by="ada")
    stored = there(store.read())
    document = json.loads(stored.entries["reader"])
    newer = {**document, "version": {**document["version"], "profile": {"only_on_mondays": True}}}
    for broken, words in [
        ("no JSON", "is wrong in 1 places"),
        (json.dumps(newer), "is wrong in 1 places"),
        (json.dumps({**document, "name": "other"}), "is another agent's"),
    ]:
        store.change("reader", expected=store.history("reader"), history="broken", entry=broken)
        assert words in str(in_force(store)["reader"])

    with pytest.raises(NoSuchProfile):
        profiles.versions("reader")
    assert profiles.put("reader", WRITER, by="ada").version == 1  # an operator can always replace it
    assert in_force(store) == {"reader": WRITER}


def test_who_writes_to_the_store_makes_no_profile(store: DocumentStore) -> None:
    """Where the fleet signs: neither an unsigned one counts, nor one that was changed, nor one of another name."""
    signed = profiles_in(store, seal("0123456789"))
    signed.put("reader", READER, by="ada")
    profiles_in(store).put("writer", WRITER, by="eve")
    assert in_force(store, seal("0123456789"))["reader"] == READER
    assert "is not signed" in str(in_force(store, seal("0123456789"))["writer"])
    assert "is signed" in str(in_force(store)["reader"])

    found = there(store.read())
    changed = found.entries["reader"].replace('"user"', '"owner"')
    store.change("reader", expected=store.history("reader"), history="x", entry=changed)
    assert "was changed" in str(in_force(store, seal("0123456789"))["reader"])


def test_profiles_outlive_the_key_that_signs(store: DocumentStore) -> None:
    """With their versions: they are signed anew while the old key counts still."""
    profiles_in(store, seal("0123456789")).put("reader", READER, by="ada")
    between = profiles_in(store, seal("abcdefghij", "0123456789"))
    between.sign_again()
    found = there(store.read())
    between.sign_again()

    assert store.read(found.revision) is None  # there was nothing left to do
    assert in_force(store, seal("abcdefghij")) == {"reader": READER}
    assert [one.version for one in profiles_in(store, seal("abcdefghij")).versions("reader")] == [1]
