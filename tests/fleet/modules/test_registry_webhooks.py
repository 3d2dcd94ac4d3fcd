"""Changes of tools reach a receiver of webhooks, over real beats and a real worker."""

import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

from support.fleet import TestBed, program
from support.followers import SECRET, change, following
from support.module_server import serve
from support.owls import make_module
from support.waiting import wait_until
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.wakeups.webhook_feed import receiver_of


@pytest.mark.slow
async def test_each_change_comes_once_whoever_dies(tmp_path: Path) -> None:
    """Of more than 1,000 at once, with two beats of which one is killed, and with a receiver that was away meanwhile."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with ExitStack() as stack:
        owls = stack.enter_context(serve(make_module()))
        url = stack.enter_context(redis_server(tmp_path / "redis"))
        redis = stack.enter_context(Redis.from_url(url))
        async with following() as follower:
            webhooks = {"registry_webhooks": {follower.url: ()}, "registry_webhooks_secret": SECRET}
            bed = TestBed(url, (owls,), logs, webhooks)
            keys, receiver = bed.settings.keys, receiver_of(follower.url)
            beats = [
                stack.enter_context(program(bed, beat_command(), f"beat-{number}", ready="beat: Starting"))
                for number in range(2)
            ]
            await wait_until(lambda: redis.hexists(keys.webhook_positions, receiver), "beat feeds the webhook")
            worker = stack.enter_context(bed.worker(lane="fast"))
            await wait_until(lambda: ("registered", "owls.echo") in follower.told, "the module's tools are told")
            await follower.stop()
            await change(bed.settings, "owls.first")
            await wait_until(lambda: redis.zcard(keys.webhooks_due(receiver)), "an event waits", seconds=30)
            names = [f"owls.t{number}" for number in range(1_200)]
            await change(bed.settings, *names[:600])
            beats[0].send_signal(signal.SIGKILL)
            await change(bed.settings, *names[600:])
            await follower.start()
            wanted = {"owls.first", *names, *owls.tools}
            await wait_until(lambda: wanted <= {tool for _, tool in follower.told}, "all were told", seconds=90)
            said = worker.said() + beats[1].said()

    assert max(Counter(follower.told).values()) == 1
    assert follower.refused == 0
    assert not any(secret in said for secret in (SECRET, "s3cret"))
