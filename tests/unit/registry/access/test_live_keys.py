"""Which key a text is, from memory: how old what is known may be, and what is asked of the store."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace

import pytest

from support.waiting import wait_until
from toolfleet_registry import api_keys
from toolfleet_registry.access import COMMAND_LINE, KeyDraft, new_key_text
from toolfleet_registry.api_keys import API_KEYS, ApiKeys, CreatedKey, LiveKeys, key_seal
from toolfleet_registry.errors import FleetUnavailable, OperationRefused
from toolfleet_registry.signing import SigningSettings, TextSeal
from toolfleet_registry.store.documents import Documents
from toolfleet_registry.store.sql import SQLDocuments
from toolfleet_registry.system import fleet_clock

UNSEALED = key_seal(SigningSettings())


class FaultyStore(SQLDocuments):
    """A store that counts what it is asked, and is away, or stands still, while it is told to."""

    def __init__(self) -> None:
        super().__init__("sqlite://", API_KEYS)
        self.reads = 0
        self.is_away = False
        self.answers = threading.Event()
        self.answers.set()

    def read(self, known: str = "") -> Documents | None:
        self.reads += 1
        self.answers.wait()
        if self.is_away:
            raise FleetUnavailable("the store is away")
        return super().read(known)

    def create(self, **fields: object) -> CreatedKey:
        return ApiKeys(self, UNSEALED).create(KeyDraft.model_validate({"user_id": "ada", **fields}), COMMAND_LINE)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
async def live(store: FaultyStore) -> AsyncIterator[LiveKeys]:
    live = LiveKeys(store, UNSEALED)
    yield live
    store.answers.set()
    await live.aclose()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """By how many `seconds` both clocks are ahead of the test's beginning, where they stand still unless they shall `run`."""
    ahead = SimpleNamespace(seconds=0.0, run=False)
    for name in ("suspend_aware", "now"):
        real = getattr(fleet_clock, name)
        monkeypatch.setattr(fleet_clock, name, partial(_shifted, ahead, real, real()))
    return ahead


def _shifted(ahead: SimpleNamespace, real: Callable[[], float], began: float) -> float:
    return float((real() if ahead.run else began) + ahead.seconds)


async def test_keys_are_known_for_a_second(store: FaultyStore, live: LiveKeys, later: SimpleNamespace) -> None:
    """Many requests at once, of many keys, cost the store one question; a second later another one."""
    one, other = store.create(), store.create()
    texts = [one.text, other.text] * 50

    assert await asyncio.gather(*map(live.find, texts)) == [one.key, other.key] * 50
    assert store.reads == 1
    later.seconds = 1.1
    await asyncio.gather(*map(live.find, texts))
    assert store.reads == 2


async def test_a_revoked_key_is_none_a_second_later(store: FaultyStore, live: LiveKeys, later: SimpleNamespace) -> None:
    """Wherever it was revoked."""
    made = store.create()
    assert await live.find(made.text) == made.key
    ApiKeys(store, UNSEALED).revoke([made.key.id])
    later.seconds = 1.01

    assert await live.find(made.text) is None
    assert not await live.is_live(made.key.id)


async def test_a_new_key_counts_at_once(store: FaultyStore, live: LiveKeys, later: SimpleNamespace) -> None:
    """Although what there was is known for a second still."""
    await live.find(store.create().text)
    made = store.create()
    later.seconds = 0.11

    assert await live.find(made.text) == made.key


async def test_an_expired_key_is_none(store: FaultyStore, live: LiveKeys, later: SimpleNamespace) -> None:
    """In the moment when it ends, without a question."""
    made = store.create(expires_at=fleet_clock.now() + 0.5)
    assert await live.find(made.text) == made.key
    later.seconds = 0.6

    assert await live.find(made.text) is None
    assert not await live.is_live(made.key.id)
    assert store.reads == 1


async def test_what_is_no_key_costs_the_store_little(store: FaultyStore, live: LiveKeys) -> None:
    """Texts without a checksum nothing, and forged ones some ten questions a second, however many they are."""
    assert [await live.find(text) for text in ("", "tfk_x", "x" * 100_000)] == [None] * 3
    assert store.reads == 0

    began = fleet_clock.suspend_aware()
    for _ in range(10):
        assert await asyncio.gather(*(live.find(new_key_text().text) for _ in range(100))) == [None] * 100
    assert store.reads <= 12 * (fleet_clock.suspend_aware() - began + 1)


@pytest.mark.parametrize("fault", ["away", "stopped"])
async def test_a_store_that_does_not_answer_is_borne_for_a_moment(
    store: FaultyStore, live: LiveKeys, later: SimpleNamespace, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is good for two seconds after it was known to be; then nobody is let in, known or not, until the store answers."""
    made = store.create()
    assert await live.find(made.text) == made.key
    if fault == "away":
        store.is_away = True
    else:  # then it is waited for by the clock; for less long than others would, so that it stays within the two seconds
        later.run = True
        monkeypatch.setattr(api_keys, "_SHORT_PATIENCE_SECONDS", 0.05)
        store.answers.clear()
    later.seconds = 1.1
    assert await live.find(made.text) == made.key
    with pytest.raises(FleetUnavailable):
        await live.find(new_key_text().text)

    later.seconds = 2.1
    for asking in (live.find(made.text), live.find(new_key_text().text), live.has_any()):
        with pytest.raises(FleetUnavailable):
            await asking
    assert await live.find("tfk_none") is None

    store.is_away = False
    store.answers.set()
    later.seconds = 5
    assert await live.find(made.text) == made.key


async def test_nobody_is_let_in_before_the_first_answer(
    store: FaultyStore, live: LiveKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the wait for it is bounded."""
    monkeypatch.setattr(api_keys, "_PATIENCE_SECONDS", 0.05)
    made = store.create()
    store.answers.clear()
    with pytest.raises(FleetUnavailable):
        await live.find(made.text)


async def test_a_store_that_is_away_is_not_asked_by_each_request(store: FaultyStore, live: LiveKeys) -> None:
    """After a failure it has a pause, and then one question for all who came meanwhile."""
    made = store.create()
    store.is_away = True
    for _ in range(3):
        found = await asyncio.gather(*(live.find(made.text) for _ in range(100)), return_exceptions=True)
        assert all(isinstance(each, FleetUnavailable) for each in found)

    assert store.reads <= 6


async def test_whoever_comes_as_the_store_is_back_is_let_in(store: FaultyStore, live: LiveKeys) -> None:
    """Also in the pause after the last failure: a question of their own is answered."""
    made = store.create()
    store.is_away = True
    with pytest.raises(FleetUnavailable):
        await live.find(made.text)
    store.is_away = False

    assert await live.find(made.text) == made.key


async def test_whoever_goes_away_takes_no_answer_from_others(store: FaultyStore, live: LiveKeys) -> None:
    """A request that is cancelled while all wait for the store leaves the question alone."""
    made = store.create()
    store.answers.clear()
    one, other = asyncio.create_task(live.find(made.text)), asyncio.create_task(live.find(made.text))
    await wait_until(lambda: store.reads, "the store was asked")
    one.cancel()
    store.answers.set()

    assert await other == made.key
    assert one.cancelled()


async def test_what_is_changed_here_is_known_here(store: FaultyStore, live: LiveKeys) -> None:
    """Also while an answer from before the change is under way."""
    made = await live.ask(lambda keys: keys.create(KeyDraft(user_id="ada"), COMMAND_LINE))
    assert await live.find(made.text) == made.key
    await live.ask(lambda keys: keys.revoke([made.key.id]))

    assert await live.find(made.text) is None
    with pytest.raises(OperationRefused):
        await live.ask(lambda keys: keys.create(KeyDraft(user_id="ada", expires_at=1), COMMAND_LINE))


async def test_the_use_of_a_key_is_noted(store: FaultyStore, live: LiveKeys, later: SimpleNamespace) -> None:
    """Once a minute, and beside the request."""
    made = store.create()
    await live.find(made.text)
    await wait_until(store.used, "it was noted")
    (first,) = store.used().values()
    later.seconds = 61
    await live.find(made.text)

    await wait_until(lambda: store.used()[made.key.id] > first, "it was noted anew")


async def test_whether_there_are_keys(store: FaultyStore, live: LiveKeys, later: SimpleNamespace) -> None:
    """An expired one is one."""
    assert not await live.has_any()
    store.create(expires_at=fleet_clock.now() + 1)
    later.seconds = 5
    assert await live.has_any()


async def test_keys_are_signed_anew(store: FaultyStore) -> None:
    """By whichever gateway has an old key of the fleet's still."""
    old, new = "0123456789" * 4, "abcdefghij" * 4
    made = ApiKeys(store, TextSeal(old, purpose="api-key")).create(KeyDraft(user_id="ada"), COMMAND_LINE)
    live = LiveKeys(store, TextSeal(new, purpose="api-key", old_keys=(old,)), signs_again=True)
    assert await live.find(made.text) == made.key

    later = ApiKeys(store, TextSeal(new, purpose="api-key"))
    await wait_until(lambda: [each.key for each in later.records()] == [made.key], "it is signed anew")
    await live.aclose()
