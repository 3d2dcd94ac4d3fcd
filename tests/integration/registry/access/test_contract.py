"""What every store of API keys does, wherever it keeps them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from support.there import there
from toolfleet_registry.access import memory, redis, sql
from toolfleet_registry.access.api_key import KeyDraft
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.access.entries import key_seal
from toolfleet_registry.access.factory import open_key_store
from toolfleet_registry.access.grants import COMMAND_LINE, KeyMaker
from toolfleet_registry.access.port import KeyStore
from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.time import fleet_clock

UNSEALED = key_seal(SigningSettings())

Stores = Callable[[], KeyStore]
ADA = KeyDraft(user_id="ada", permission="user", allowed_modules=frozenset({"owls"}), description="für die Eulen")


@pytest.fixture
def key_prefix() -> str:
    return "acme:"


@pytest.fixture
def stores(store_url: str, key_prefix: str) -> Iterator[Stores]:
    """Opens another store on the same data; but in memory, where it is the same."""
    own, settings = memory.InMemoryKeyStore(), Settings(registry_url=store_url or None, key_prefix=key_prefix)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(open_key_store(settings))) if store_url else own


@pytest.fixture
def store(stores: Stores) -> KeyStore:
    return stores()


def test_what_one_process_keeps_another_reads(stores: Stores) -> None:
    """All of it, as it was written."""
    one, other = stores(), stores()
    assert one.add("a", "äöü \n ☃")
    assert one.add("b", "two")

    found = there(other.read())
    assert found.entries == {"a": "äöü \n ☃", "b": "two"}


def test_a_key_is_never_replaced(store: KeyStore) -> None:
    """One whose id is taken finds no place, and changes nothing."""
    store.add("a", "first")
    before = there(store.read())

    assert not store.add("a", "second")
    assert store.read(before.revision) is None


def test_each_change_has_a_revision_of_its_own(stores: Stores) -> None:
    """Whoever knows the latest one is told nothing, also of no keys at all, and whoever knows an earlier one everything."""
    one, other = stores(), stores()
    seen = list[str]()
    for change in (lambda: None, lambda: one.add("a", "x"), lambda: one.remove(["a"]), lambda: one.add("a", "x")):
        change()
        found = there(other.read())
        assert other.read(found.revision) is None
        seen.append(found.revision)

    assert len(set(seen)) == 4
    assert other.read(seen[1]) is not None


def test_what_is_removed_is_told(store: KeyStore) -> None:
    """Of several, each once, those that were there; where none was nothing has changed."""
    store.add("a", "x")
    store.add("b", "y")

    assert store.remove(["b", "none", "b"]) == ["b"]
    before = there(store.read())
    assert before.entries == {"a": "x"}
    assert store.remove(["b"]) == []
    assert store.remove([]) == []
    assert store.read(before.revision) is None


def test_use_is_noted_once_a_minute(store: KeyStore) -> None:
    """Not of keys that are gone, and without a change that others had to read."""
    store.add("a", "x")
    before = there(store.read())
    assert store.used() == {}

    store.note_used({"a": 1000, "gone": 1000})
    store.note_used({"a": 1059})
    assert store.used() == {"a": 1000}
    store.note_used({"a": 1060})
    assert store.used() == {"a": 1060}
    assert store.read(before.revision) is None
    store.remove(["a"])
    assert store.used() == {}


def test_there_is_an_end_to_keys(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it none is taken, until one is removed."""
    for module in (memory, redis, sql):
        monkeypatch.setattr(module, "MOST_KEYS", 2)
    keys = ApiKeys(store, UNSEALED)
    first = keys.create(ADA, COMMAND_LINE)
    keys.create(ADA, COMMAND_LINE)

    with pytest.raises(OperationRefused, match="API keys already"):
        keys.create(ADA, COMMAND_LINE)
    keys.revoke([first.key.id])
    assert keys.create(ADA, COMMAND_LINE)


def test_keys_are_made_side_by_side(stores: Stores) -> None:
    """By several threads and processes at once: each finds its place."""
    opened = [stores() for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda n: opened[n % 3].add(f"key-{n}", "x"), range(12)))

    found = there(opened[0].read())
    assert len(found.entries) == 12


def test_a_key_is_found_by_its_text_only(stores: Stores) -> None:
    """With all that it was made with; nothing that is stored is the text, or a part of it."""
    made = ApiKeys(stores(), UNSEALED).create(ADA, COMMAND_LINE)
    other = ApiKeys(stores(), UNSEALED)

    assert other.find(made.text) == made.key
    assert (made.key.user_id, made.key.created_by, made.key.description) == ("ada", "command line", "für die Eulen")
    assert made.key.caller.allowed_modules == frozenset({"owls"})
    stored = there(stores().read())
    secret = made.text.rpartition("_")[2]
    assert all(secret[:20] not in text for text in stored.entries.values())
    assert made.text not in repr(made)
    for wrong in ("", "tfk_", made.text[:-1], made.text.swapcase(), f" {made.text}", made.text + "0"):
        assert other.find(wrong) is None


def test_a_text_of_another_secret_is_not_the_key(store: KeyStore) -> None:
    """Also one with its id, and a right checksum."""
    keys = ApiKeys(store, UNSEALED)
    made, forged = (
        keys.create(ADA, COMMAND_LINE),
        ApiKeys(memory.InMemoryKeyStore(), UNSEALED).create(ADA, COMMAND_LINE),
    )
    stored = there(store.read())
    store.add(forged.key.id, stored.entries[made.key.id])  # as if its id stood there

    assert keys.find(forged.text) is None


def test_a_revoked_key_is_none(store: KeyStore) -> None:
    """It is neither found nor listed."""
    keys = ApiKeys(store, UNSEALED)
    made = keys.create(ADA, COMMAND_LINE)

    assert [each.key for each in keys.records()] == [made.key]
    assert keys.revoke([made.key.id, "none"]) == [made.key.id]
    assert keys.find(made.text) is None
    assert keys.records() == []


def test_an_expired_key_counts_for_nothing(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fleet's clock; it is listed still."""
    keys, now = ApiKeys(store, UNSEALED), fleet_clock.now()
    made = keys.create(ADA.model_copy(update={"expires_at": now + 60}), COMMAND_LINE)
    assert keys.find(made.text) == made.key

    monkeypatch.setattr(fleet_clock, "now", lambda: now + 61)
    assert keys.find(made.text) is None
    assert [each.key for each in keys.records()] == [made.key]
    with pytest.raises(OperationRefused, match="future"):
        keys.create(ADA.model_copy(update={"expires_at": now + 61}), COMMAND_LINE)


def test_what_cannot_be_read_counts_for_nothing(store: KeyStore) -> None:
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
        store.remove([made.key.id])
        store.add(made.key.id, broken)
        assert keys.find(made.text) is None
        assert [each.key for each in keys.records()] == [kept.key]
    assert keys.find(kept.text) == kept.key


def seal(key: str, *old_keys: str) -> TextSeal:
    return key_seal(SigningSettings(signing_key=key * 4, signing_keys_old=tuple(old * 4 for old in old_keys)))


def test_who_writes_to_the_store_makes_no_key(store: KeyStore) -> None:
    """Where the fleet signs: neither one that is not signed counts, nor one whose rights were changed."""
    signed = ApiKeys(store, seal("0123456789"))
    made = signed.create(ADA, COMMAND_LINE)
    assert signed.find(made.text) == made.key

    forged = ApiKeys(store, UNSEALED).create(ADA, COMMAND_LINE)
    assert signed.find(forged.text) is None
    assert ApiKeys(store, UNSEALED).find(made.text) is None
    found = there(store.read())
    stored = found.entries[made.key.id]
    store.replace(made.key.id, stored.replace('"user"', '"owner"'), expected=stored)
    assert signed.find(made.text) is None
    assert signed.records() == []


def test_keys_outlive_the_key_that_signs(store: KeyStore) -> None:
    """They are signed anew while the old one counts still; nobody has to read them anew for that."""
    made = ApiKeys(store, seal("0123456789")).create(ADA, COMMAND_LINE)
    unsigned = ApiKeys(store, UNSEALED).create(ADA, COMMAND_LINE)
    before = there(store.read())
    between = ApiKeys(store, seal("abcdefghij", "0123456789"))
    assert between.find(made.text) == made.key

    between.sign_again()
    after = ApiKeys(store, seal("abcdefghij"))
    assert after.find(made.text) == made.key
    assert after.find(unsigned.text) is None
    assert store.read(before.revision) is None


def test_what_is_not_as_expected_is_left(store: KeyStore) -> None:
    """A key that was revoked meanwhile does not come back."""
    store.add("a", "x")
    store.replace("a", "y", expected="z")
    store.replace("b", "y", expected="x")

    found = there(store.read())
    assert found.entries == {"a": "x"}


def test_who_may_less_makes_no_key(store: KeyStore) -> None:
    """What is refused leaves nothing."""
    keys = ApiKeys(store, UNSEALED)
    maker = KeyMaker.of_key(keys.create(ADA, COMMAND_LINE).key)

    with pytest.raises(OperationRefused, match="made by admins"):
        keys.create(ADA, maker)
    assert len(keys.records()) == 1
