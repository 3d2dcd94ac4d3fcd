"""A pause outlives a Redis that is really ended and started again."""

import contextlib
from pathlib import Path

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import held_port, redis_server


async def test_a_pause_outlives_a_redis_that_is_started_again(
    owls: ModuleServer, owner: Caller, tmp_path: Path
) -> None:
    """On the same data, and so does what waits."""
    (tmp_path / "logs").mkdir()
    owls.forget()
    with held_port() as port, contextlib.ExitStack() as servers:
        url = servers.enter_context(redis_server(tmp_path / "redis", port=port))
        bed = TestBed(url, (owls,), tmp_path / "logs")
        async with ToolFleet(settings=bed.settings) as agent:
            with bed.worker():
                await agent.queues.pause("owls", reason="deploy")
                nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0})
                call = await agent.submit(nap, owner, timeout=120)
                servers.close()
                servers.enter_context(redis_server(tmp_path / "redis", port=port))

                async def waits() -> bool:
                    (one,) = [queue for queue in await agent.queues.list() if queue.module == "owls"]
                    return (one.state, one.reason, one.waiting) == ("paused", "deploy", 1)

                await wait_until_answered(waits, "the call waits in a paused queue")
                assert owls.calls("nap_once") == []
                await agent.queues.resume("owls")
                assert (await call.result(3 * PATIENCE_SECONDS)).success
    assert len(owls.calls("nap_once")) == 1
