"""What one process revokes another one lets in no more, whatever happens to Redis meanwhile."""

from pathlib import Path

import pytest

from support.processes import next_line, python_program
from support.servers.redis_faults import faulty_redis
from toolfleet_registry.access.api_key import KeyDraft
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.access.entries import key_seal
from toolfleet_registry.access.factory import open_key_store
from toolfleet_registry.access.grants import COMMAND_LINE
from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.settings import Settings

UNSEALED = key_seal(SigningSettings())

# Says each change of what becomes of a key: `let in`, `refused`, `unavailable`.
GATEWAY = """
import asyncio, sys, time
from toolfleet_registry.access.live_keys import LiveKeys
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings

async def main(url, text):
    live, last = LiveKeys.of(Settings(redis_url=url)), ""
    while True:
        try:
            said = "refused" if await live.find(text) is None else "let in"
        except FleetUnavailable:
            said = "unavailable"
        if said != last:
            print(said, flush=True)
            last = said
        await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def key_prefix() -> str:
    """None."""
    return ""


def test_a_key_is_revoked_in_another_process(redis_url: str) -> None:
    """Its gateway has a key in memory, and hears of it."""
    store = open_key_store(Settings(redis_url=redis_url))
    keys = ApiKeys(store, UNSEALED)
    made = keys.create(KeyDraft(user_id="ada"), COMMAND_LINE)
    with python_program(GATEWAY, redis_url, made.text) as gateway:
        assert next_line(gateway) == "let in"
        keys.revoke([made.key.id])
        assert next_line(gateway) == "refused"
    store.close()


@pytest.mark.slow
def test_a_frozen_redis_lets_nobody_in(tmp_path: Path) -> None:
    """Nor does it once it is gone; when it is back the same keys are let in."""
    with faulty_redis(tmp_path) as redis:
        store = open_key_store(Settings(redis_url=redis.url))
        made = ApiKeys(store, UNSEALED).create(KeyDraft(user_id="ada"), COMMAND_LINE)
        with python_program(GATEWAY, redis.url, made.text) as gateway:
            assert next_line(gateway) == "let in"
            with redis.frozen():
                assert next_line(gateway) == "unavailable"
            assert next_line(gateway) == "let in"
        store.close()
