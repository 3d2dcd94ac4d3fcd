"""How long an idempotency key holds that a core has from a wake-up."""

from redis.asyncio import Redis

from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS
from support.workers.hand_worker import hand_worker
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages.ids import wake_key

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def test_a_wake_ups_keys_hold_longer_than_it_is_tried(redis_url: str, redis: Redis, owls: ModuleServer) -> None:
    """The last delivery, after days, still finds what the first one's call came to; other keys hold as long as results."""
    settings = Settings(
        redis_url=redis_url, module_services={"owls": owls.url}, result_ttl_seconds=100, wake_give_up_seconds=5000
    )
    keys = settings.keys
    async with ToolFleet(settings=settings) as fleet, hand_worker(settings) as worker:
        for key, least, most in ((wake_key("job-1", "deploy"), 8500, 8700), ("deploy", 0, 2000)):
            wanted = ToolCall(tool_name="owls.echo", arguments={"key": key}, idempotency_key=key)
            handle = await fleet.submit(wanted, ADA, timeout=30)
            claim = await worker.take()
            await worker.finish(claim)
            result = await handle.result(PATIENCE_SECONDS)
            call_id = claim.call.call_id
            names = (keys.intent("ada", key), keys.call(call_id), keys.result(call_id))
            assert all([least < await redis.ttl(name) < most for name in names]), key
            assert (await fleet.call(wanted, ADA)).result == result.result
            assert await worker.queued() == []
