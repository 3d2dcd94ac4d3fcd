"""Has the hosts of tool folders read their files anew: `toolfleet tools reload`."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from toolfleet_cli.console import load_errors
from toolfleet_cli.console.output import fail, progress, say, say_json
from toolfleet_registry.directory.reload_requests import ReloadAnswer, ReloadRequests
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.time import machine_clock

_BEGIN_SECONDS = 3.0  # for hosts to hear of it: they ask twice a second
_PAUSE_SECONDS = 0.1


def register(app: typer.Typer) -> None:
    """Give the group the command."""
    app.command()(reload)


def reload(
    *,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=1, max=600, help="Wait so long at most.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Have all hosts of tool folders read their files anew, also those that did not load before and have not changed.

    Exits with 1 where files do not load as they stand, no host is there, or one does not come back in time.
    """
    answers = asyncio.run(_asked(load_settings(), seconds))
    if not answers:
        fail("No host of a tool folder has answered: none is running, or none has this fleet's Redis.", code=1)
    if as_json:
        say_json([each.model_dump(mode="json") for each in answers])
    else:
        for each in answers:
            say(f"{each.module}: {each.tools} tools" if each.is_done else f"{each.module}: still at it")
        done = [each for each in answers if each.is_done]
        say(f"{sum(each.tools for each in done)} tools, {sum(len(each.errors) for each in done)} errors")
    has_errors = load_errors.show([error for each in answers for error in each.errors])
    raise typer.Exit(1 if has_errors or not all(each.is_done for each in answers) else 0)


async def _asked(settings: Settings, seconds: float) -> Sequence[ReloadAnswer]:
    """What the hosts have said that have begun in time, by their modules' names."""
    if settings.redis_url is None:
        raise SettingsError("There is no fleet here: set TOOLFLEET_REDIS_URL, or start one with `toolfleet up`.")
    async with progress("Asking the hosts"), async_client(settings.redis_url, master=settings.sentinel_master) as redis:
        requests = ReloadRequests(redis, settings.keys)
        number = await requests.ask()
        asked_at = machine_clock.monotonic()
        while True:
            answers = await requests.answers(number)
            waited = machine_clock.monotonic() - asked_at
            if waited > seconds or (waited > _BEGIN_SECONDS and all(each.is_done for each in answers)):
                return answers
            await asyncio.sleep(_PAUSE_SECONDS)
