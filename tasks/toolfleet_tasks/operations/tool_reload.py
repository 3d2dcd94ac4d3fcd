"""Has the hosts of tool folders read their files again, and waits for their answers."""

import asyncio
from collections.abc import Sequence

from toolfleet_registry.directory.reload_requests import ReloadAnswer, ReloadRequests
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import machine_clock

_BEGIN_SECONDS = 3.0  # for hosts to hear of it: they ask twice a second
_PAUSE_SECONDS = 0.1


async def reload_tools(settings: Settings, *, seconds: float) -> Sequence[ReloadAnswer]:
    """Return the answers of hosts that have started in time, by module; those that are not done after `seconds` say so.

    Raises `FleetUnavailable` when Redis does not answer, and `SettingsError` if the settings name none.
    """
    async with async_client(fleet_url(settings.redis_url), master=settings.sentinel_master) as redis:
        requests = ReloadRequests(redis, settings.keys)
        number = await requests.ask()
        asked_at = machine_clock.monotonic()
        while True:
            answers = await requests.answers(number)
            waited = machine_clock.monotonic() - asked_at
            if waited > seconds or (waited > _BEGIN_SECONDS and all(each.is_done for each in answers)):
                return answers
            await asyncio.sleep(_PAUSE_SECONDS)
