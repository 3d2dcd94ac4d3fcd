"""Checks API keys, wherever they are kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from support.api_keys import UNSEALED, key_of
from support.there import there
from toolfleet_gateway.auth.identity import Identity
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import API_KEYS, ApiKeys, key_seal
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.signing import SigningSettings, TextSeal
from toolfleet_registry.store.documents import Changed, DocumentKind, DocumentStore
from toolfleet_registry.store.sql import SQLDocuments
from toolfleet_registry.system import fleet_clock

OpenDocuments: TypeAlias = Callable[[DocumentKind], DocumentStore]
Stores: TypeAlias = Callable[[], DocumentStore]
ADA = KeyDraft(user_id="ada", permission="user", allowed_modules=frozenset({"owls"}), description="für die Eulen")


@pytest.fixture
def key_prefix() -> str:
    return "acme:"


@pytest.fixture
def stores(documents: OpenDocuments) -> Stores:
    """Opens another store on the same data; but in memory, where it is the same."""
    return lambda: documents(API_KEYS)


@pytest.fixture
def store(stores: Stores) -> DocumentStore:
    return stores()


def change_entry(store: DocumentStore, key_id: str, entry: str) -> None:
    """As one who may write to the store."""
    assert store.change(key_id, expected=store.history(key_id), entry=entry) is Changed.DONE


def test_what_is_revoked_is_told(store: DocumentStore) -> None:
    """Of several, each once, those that were there; where none was nothing has changed."""
    keys = ApiKeys(store, UNSEALED)
    kept, gone = keys.create(ADA, COMMAND_LINE), keys.create(ADA, COMMAND_LINE)

    assert keys.revoke([gone.key.id, "none", gone.key.id]) == [gone.key.id]
    before = there(store.read())
    assert [*before.entries] == [kept.key.id]
    assert keys.revoke([gone.key.id]) == []
    assert keys.revoke([]) == []
    assert store.read(before.revision) is None


def test_there_is_an_end_to_keys(documents: OpenDocuments) -> None:
    """Beyond it none is taken, until one is removed."""
    keys = ApiKeys(documents(replace(API_KEYS, most=2)), UNSEALED)
    first = keys.create(ADA, COMMAND_LINE)
    keys.create(ADA, COMMAND_LINE)

    with pytest.raises(OperationRefused, match="API keys already"):
        keys.create(ADA, COMMAND_LINE)
    keys.revoke([first.key.id])
    assert keys.create(ADA, COMMAND_LINE)


def test_a_key_is_found_by_its_text_only(stores: Stores) -> None:
    """With all that it was made with; nothing that is stored is the text, or a part of it."""
    made = ApiKeys(stores(), UNSEALED).create(ADA, COMMAND_LINE)
    other = stores()

    assert key_of(made.text, other) == made.key
    assert (made.key.user_id, made.key.created_by, made.key.description) == ("ada", "command line", "für die Eulen")
    assert made.key.caller.allowed_modules == frozenset({"owls"})
    stored = there(stores().read())
    secret = made.text.rpartition("_")[2]
    assert all(secret[:20] not in text for text in stored.entries.values())
    assert made.text not in repr(made)
    for wrong in ("", "tfk_", made.text[:-1], made.text.swapcase(), f" {made.text}", made.text + "0"):
        assert key_of(wrong, other) is None


def test_a_text_of_another_secret_is_not_the_key(store: DocumentStore) -> None:
    """Also one with its id, and a right checksum."""
    keys = ApiKeys(store, UNSEALED)
    made, forged = (
        keys.create(ADA, COMMAND_LINE),
        ApiKeys(SQLDocuments("sqlite://", API_KEYS), UNSEALED).create(ADA, COMMAND_LINE),
    )
    stored = there(store.read())
    change_entry(store, forged.key.id, stored.entries[made.key.id])  # as if its id stood there

    assert key_of(forged.text, store) is None


def test_a_revoked_key_is_none(store: DocumentStore) -> None:
    """It is neither found nor listed."""
    keys = ApiKeys(store, UNSEALED)
    made = keys.create(ADA, COMMAND_LINE)

    assert [each.key for each in keys.records()] == [made.key]
    assert keys.revoke([made.key.id, "none"]) == [made.key.id]
    assert key_of(made.text, store) is None
    assert keys.records() == []


def test_an_expired_key_counts_for_nothing(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fleet's clock; it is listed still."""
    keys, now = ApiKeys(store, UNSEALED), fleet_clock.now()
    made = keys.create(ADA.model_copy(update={"expires_at": now + 60}), COMMAND_LINE)
    assert key_of(made.text, store) == made.key

    monkeypatch.setattr(fleet_clock, "now", lambda: now + 61)
    assert key_of(made.text, store) is None
    assert [each.key for each in keys.records()] == [made.key]
    with pytest.raises(OperationRefused, match="future"):
        keys.create(ADA.model_copy(update={"expires_at": now + 61}), COMMAND_LINE)


def test_what_cannot_be_read_counts_for_nothing(store: DocumentStore) -> None:
    """Not even if only a field is unknown, by which a newer release might have narrowed it. Others are found as before."""
    keys = ApiKeys(store, UNSEALED)
    made, kept = keys.create(ADA, COMMAND_LINE), keys.create(ADA, COMMAND_LINE)
    stored = there(store.read())
    entry = stored.entries[made.key.id]
    for broken in (
        "",
        "{}",
        entry.replace('"user_id"', '"only_on_mondays":true,"user_id"'),
        entry.replace(made.key.id, kept.key.id),
    ):
        change_entry(store, made.key.id, broken)
        assert key_of(made.text, store) is None
        assert [each.key for each in keys.records()] == [kept.key]
    assert key_of(kept.text, store) == kept.key


def seal(key: str, *old_keys: str) -> TextSeal:
    return key_seal(SigningSettings(signing_key=key * 4, signing_keys_old=tuple(old * 4 for old in old_keys)))


def test_who_writes_to_the_store_makes_no_key(store: DocumentStore) -> None:
    """Where the fleet signs: neither one that is not signed counts, nor one whose rights were changed."""
    signed = ApiKeys(store, seal("0123456789"))
    made = signed.create(ADA, COMMAND_LINE)
    assert key_of(made.text, store, seal("0123456789")) == made.key

    forged = ApiKeys(store, UNSEALED).create(ADA, COMMAND_LINE)
    assert key_of(forged.text, store, seal("0123456789")) is None
    assert key_of(made.text, store) is None
    found = there(store.read())
    stored = found.entries[made.key.id]
    change_entry(store, made.key.id, stored.replace('"user"', '"owner"'))
    assert key_of(made.text, store, seal("0123456789")) is None
    assert signed.records() == []


def test_keys_outlive_the_key_that_signs(store: DocumentStore) -> None:
    """They are signed anew while the old one counts still; nobody has to read them anew for that."""
    made = ApiKeys(store, seal("0123456789")).create(ADA, COMMAND_LINE)
    unsigned = ApiKeys(store, UNSEALED).create(ADA, COMMAND_LINE)
    before = there(store.read())
    between = ApiKeys(store, seal("abcdefghij", "0123456789"))
    assert key_of(made.text, store, seal("abcdefghij", "0123456789")) == made.key

    between.sign_again()
    assert key_of(made.text, store, seal("abcdefghij")) == made.key
    assert key_of(unsigned.text, store, seal("abcdefghij")) is None
    assert store.read(before.revision) is None


def test_who_may_less_makes_no_key(store: DocumentStore) -> None:
    """What is refused leaves nothing."""
    keys = ApiKeys(store, UNSEALED)
    maker = Identity.of_key(keys.create(ADA, COMMAND_LINE).key).key_maker()

    with pytest.raises(OperationRefused, match="made by admins"):
        keys.create(ADA, maker)
    assert len(keys.records()) == 1
