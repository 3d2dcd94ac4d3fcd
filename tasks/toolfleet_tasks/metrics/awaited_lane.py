"""Notes that workers of a lane are started when calls wait there, so that agents let them wait."""

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.lua.constants import RESTART
from toolfleet_tasks.lua.consumers import NOTE
from toolfleet_tasks.metrics.fleet_facts import FleetFacts, Lane
from toolfleet_tasks.presence.consumers import digest_of

_LEAST_SECONDS = 10.0  # the autoscaler may be restarted as well, or Redis may

log = get_logger(__name__)


class AwaitedLane:
    """The note of one lane: that of a worker that is being restarted, so that agents of every version know it."""

    def __init__(self, redis: Redis, settings: Settings, lane: Lane) -> None:
        self._redis = redis
        self._keys = settings.keys
        self._lane: Lane = lane
        self._seconds = max(settings.restart_seconds, _LEAST_SECONDS)

    async def note(self, facts: FleetFacts) -> None:
        """Note it for the lane's queues as they are now; it counts for as long as a restart may take. Raises nothing."""
        queues = tuple(sorted(self._keys.queue(queue.queue) for queue in facts.of_lane(self._lane)))
        if not queues:
            return
        digest = digest_of(queues)
        keys = {"notes": self._keys.consumers, "consumed": self._keys.consumed(digest)}
        parameters = NOTE.parameters(**keys, note=f"{RESTART} {digest}", seconds=self._seconds)
        try:
            if not await self._redis.eval(NOTE.text, *parameters):
                await self._redis.eval(NOTE.text, *parameters, *queues)
        except (RedisError, OSError) as exc:
            log.warning("awaited_lane_not_noted", lane=self._lane, error=str(exc))
