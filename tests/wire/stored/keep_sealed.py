"""Writes fixtures of what gateways seal, behind those that are there: `PYTHONPATH=tests python -m wire.stored.keep_sealed`."""

import asyncio
import json
import tempfile
from pathlib import Path
from unittest import mock

from redis.asyncio import Redis

from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.system import fleet_clock
from wire.stored.samples.job_forms import AT
from wire.stored.samples.sealed_forms import KEYS_OF, OWN_KEY, SEALED, inside, kept_sealed, written


async def keep_sealed(url: str) -> None:
    """Add what is sealed, unless the last fixture of its kind has the same in it."""
    kept, keys = kept_sealed(), GatewayKeys(Keys())
    async with Redis.from_url(url) as redis:
        await redis.set(keys.mcp_state_key, OWN_KEY)
        for mode in KEYS_OF:
            for name, text in (await written(redis, keys, mode)).items():
                texts = kept.setdefault(mode, {}).setdefault(name, [])
                last = [await inside(redis, keys, mode, name, before) for before in texts[-1:]]
                if last != [await inside(redis, keys, mode, name, text)]:
                    texts.append(text)
    SEALED.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    then = mock.patch.object(fleet_clock, "now", return_value=AT)
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as own_url, then:
        asyncio.run(keep_sealed(own_url))
