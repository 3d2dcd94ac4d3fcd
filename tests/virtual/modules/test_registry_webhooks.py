"""Changes of tools reach a receiver of webhooks."""

import asyncio
from collections import Counter
from collections.abc import Callable

from bed.fleet import Bed, until
from support.followers import SECRET, Follower, change
from support.module_server import ModuleServer
from toolfleet_tasks.wakeups.webhook_feed import receiver_of


async def test_each_change_comes_once_whoever_dies(bed: Bed, owls: ModuleServer, said: Callable[[], str]) -> None:
    """Of more than 1,000 at once, with two beats of which one is killed, and with a receiver that was away meanwhile."""
    follower = Follower()
    await bed.site("follower").start(follower.start())
    webhooks = {"registry_webhooks": {follower.url: ()}, "registry_webhooks_secret": SECRET}
    bed.given |= webhooks
    await bed.serve(owls)
    keys, receiver = bed.settings.keys, receiver_of(follower.url)
    beats = [await bed.beat() for _ in range(2)]
    await until(lambda: bed.ask("HEXISTS", keys.webhook_positions, receiver), "beat feeds the webhook")
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
