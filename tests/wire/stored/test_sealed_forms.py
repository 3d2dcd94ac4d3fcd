"""What gateways give to clients, over versions: what any of them has sealed is opened, and what a newer one adds does no harm."""

import json
import zlib

import pytest
from redis.asyncio import Redis

from toolfleet_gateway.console.sessions import COOKIE, ConsoleSessions
from toolfleet_gateway.mcp.old_clients import ClientSession, ClientSessions
from toolfleet_gateway.mcp.tasks import SealedStates, WrongState
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.system import fleet_clock
from wire.stored.samples.job_forms import AT
from wire.stored.samples.sealed_forms import (
    APPROVAL,
    ARGUMENTS,
    CONSOLE,
    CREDENTIAL,
    KEYS_OF,
    OWN_KEY,
    QUESTION,
    SESSION,
    TOOL,
    VIEW,
    codec_of,
    inside,
    kept_sealed,
    written,
)

KEPT = kept_sealed()
KEYS = GatewayKeys(Keys())
each_mode = pytest.mark.parametrize("mode", KEYS_OF)


@pytest.fixture(autouse=True)
async def _then(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is when the fixtures were written, and Redis has the key that it had."""
    monkeypatch.setattr(fleet_clock, "now", lambda: AT)
    await redis.set(KEYS.mcp_state_key, OWN_KEY)


@each_mode
async def test_what_is_sealed_was_kept(redis: Redis, mode: str) -> None:
    """Whoever changes what is in it adds a fixture: `PYTHONPATH=tests python -m wire.stored.keep_sealed`."""
    for name, text in (await written(redis, KEYS, mode)).items():
        last = await inside(redis, KEYS, mode, name, KEPT[mode][name][-1])
        assert last == await inside(redis, KEYS, mode, name, text), name


@each_mode
async def test_states_of_questions_are_opened(redis: Redis, mode: str) -> None:
    """A client that a gateway of another version has asked is answered."""
    states = SealedStates(redis, KEYS, KEYS_OF[mode])
    for name, asked in (("question", QUESTION), ("approval", APPROVAL)):
        for text in KEPT[mode][name]:
            assert await states.unseal(text, VIEW, TOOL, ARGUMENTS) == asked


@each_mode
async def test_a_state_with_more_in_it_is_refused(redis: Redis, mode: str) -> None:
    """It is the answer to something that this version cannot have asked."""
    facts = json.loads(await codec_of(redis, KEYS, mode).unseal(KEPT[mode]["approval"][-1]))
    newer = await codec_of(redis, KEYS, mode).seal(json.dumps([*facts, "red"]).encode())

    with pytest.raises(WrongState):
        await SealedStates(redis, KEYS, KEYS_OF[mode]).unseal(newer, VIEW, TOOL, ARGUMENTS)


@each_mode
async def test_sessions_of_the_console_go_on(redis: Redis, mode: str) -> None:
    """Nobody has to sign in again after an upgrade; a fact that came later is passed over."""
    codec = codec_of(redis, KEYS, mode, CONSOLE)
    facts = json.loads(zlib.decompress(await codec.unseal(KEPT[mode]["console"][-1])))
    newer = await codec.seal(zlib.compress(json.dumps({**facts, "colour": "red"}).encode()))
    for text in (*KEPT[mode]["console"], newer):
        session = await ConsoleSessions(codec, redis, KEYS).find({COOKIE: text})
        assert session is not None
        assert session.credential == CREDENTIAL


@each_mode
async def test_sessions_of_older_clients_go_on(redis: Redis, mode: str) -> None:
    """Whichever gateway of an upgrade a client meets; one without a level wants no log messages, and what came later is passed over."""
    sessions, texts = ClientSessions(redis, KEYS, seconds=60), KEPT[mode]["client session"]
    facts = json.loads(texts[-1])
    for text, level in (*((each, "info") for each in texts), (json.dumps([*facts, "red"]), "info")):
        await redis.set(KEYS.mcp_session("s-1"), text, ex=60)
        assert await sessions.find("s-1", VIEW) == ClientSession("s-1", *SESSION, log_level=level)  # type: ignore[arg-type]

    await redis.set(KEYS.mcp_session("s-1"), json.dumps(facts[:-1]), ex=60)
    assert await sessions.find("s-1", VIEW) == ClientSession("s-1", *SESSION)
