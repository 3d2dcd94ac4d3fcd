"""Changes of tools reach a receiver of webhooks."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from bed.fleet import Bed, until
from support.followers import SECRET, Follower, change
from support.module_server import ModuleServer
from toolfleet_tasks.wakeups.webhook_feed import receiver_of

WRITES = 8
"""More than beat makes while it looks for changes and feeds them."""


@pytest.fixture
async def follower(bed: Bed, owls: ModuleServer) -> Follower:
    """Who follows the fleet's registry."""
    follower = Follower()
    await bed.site("follower").start(follower.start())
    bed.given |= {"registry_webhooks": {follower.url: ()}, "registry_webhooks_secret": SECRET}
    await bed.serve(owls)
    return follower


async def fed(bed: Bed, follower: Follower) -> None:
    """Return once beat feeds the webhook."""
    receiver = receiver_of(follower.url)
    await until(lambda: bed.ask("HEXISTS", bed.settings.keys.webhook_positions, receiver), "beat feeds the webhook")


async def test_a_beat_that_was_paused_feeds_nothing_again(bed: Bed, follower: Follower) -> None:
    """Whichever of its writes it has made: what it has read was told meanwhile, by way of another one."""
    slow = await bed.beat()
    await fed(bed, follower)
    await bed.beat()
    await bed.worker(lane="fast")
    names = [f"owls.t{number}" for number in range(1, WRITES + 1)]
    for number, name in enumerate(names, 1):
        paused = slow.pause_at(number)
        await change(bed.settings, name)
        await paused.wait()
        await until(lambda name=name: ("registered", name) in follower.told, "it is told")  # type: ignore[misc]
        slow.resume()
        await asyncio.sleep(2)
    told = Counter(follower.told)

    assert [told["registered", name] for name in names] == [1] * WRITES


async def test_each_change_comes_once_whoever_dies(
    bed: Bed, owls: ModuleServer, follower: Follower, said: Callable[[], str]
) -> None:
    """Of more than 1,000 at once, with two beats of which one is killed, and with a receiver that was away meanwhile."""
    keys, receiver = bed.settings.keys, receiver_of(follower.url)
    beats = [await bed.beat() for _ in range(2)]
    await fed(bed, follower)
    await bed.worker(lane="fast")
    await until(lambda: ("registered", "owls.echo") in follower.told, "the module's tools are told")
    await follower.stop()
    await change(bed.settings, "owls.first")
    await until(lambda: bed.ask("ZCARD", keys.webhooks_due(receiver)), "an event waits")
    names = [f"owls.t{number}" for number in range(1_200)]
    await change(bed.settings, *names[:600])
    beats[0].kill()
    await change(bed.settings, *names[600:])
    await bed.site("follower").start(follower.start())
    wanted = {"owls.first", *names, *owls.tools}
    async with asyncio.timeout(90):
        await until(lambda: wanted <= {tool for _, tool in follower.told}, "all were told", step=1)

    assert max(Counter(follower.told).values()) == 1
    assert follower.refused == 0
    assert not any(secret in said() for secret in (SECRET, "s3cret"))
