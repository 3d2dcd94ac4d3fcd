"""Reads a fleet's facts about its modules other than their tools: addresses, workers, and troubles of their calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.directory.host_judgement import RefusedHost
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.redis_errors import reason_of
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.fleet_status import ModuleTrouble, read_status
from toolfleet_tasks.presence.consumers import workers_by_queue
from toolfleet_tasks.presence.replica_counts import ReplicaCount, replica_counts
from toolfleet_tasks.queue_states import QueueStateStore
from toolfleet_tasks.queues import lane_of, queue_of


@dataclass(frozen=True, slots=True)
class ModuleOverview:
    """The facts by module.

    `entries` are those of the directory, and `ignored` says why others do not count, as `refused` do of hosts.

    `counts`: the findings of all workers about each host, by its id, of modules with several. `queue_states`: the
    operators' states of its queue, `paused` or `draining`, if any. `conflicts`: how many different entries live
    processes have in their settings, if more than one. `lanes` and `workers` say who runs a module's calls; `troubles`
    are those that a fleet's status shows.
    """

    entries: Mapping[str, ModuleEntry]
    ignored: Mapping[str, str]
    conflicts: Mapping[str, int]
    lanes: Mapping[str, str]
    workers: Mapping[str, int]
    troubles: Mapping[str, ModuleTrouble]
    refused: Sequence[RefusedHost] = ()
    counts: Mapping[str, Mapping[str, ReplicaCount]] = field(default_factory=dict[str, Mapping[str, ReplicaCount]])
    queue_states: Mapping[str, str] = field(default_factory=dict[str, str])


async def read_overview(settings: Settings) -> ModuleOverview:
    """The overview of the fleet that the settings name. Raises `FleetUnavailable` within some seconds, or `SettingsError`."""
    async with async_client(fleet_url(settings.redis_url), master=settings.sentinel_master) as redis:
        directory = ModuleDirectory(redis, settings)
        listing, fed = await directory.read(), await directory.fed()
        states = await QueueStateStore(redis, settings).read()
    known = KnownModules(settings)
    known.take(listing.entries)
    status = await read_status(settings)
    troubles = {one.module: one for one in status.troubles if one.trouble != "unknown"}  # it has not been asked yet
    names = known.names | listing.entries.keys() | troubles.keys()
    workers, lanes = await workers_by_queue(settings), {name: lane_of(name, known.settings) for name in names}
    return ModuleOverview(
        entries=listing.entries,
        ignored=listing.ignored,
        conflicts={name: count for name, count in fed.items() if count > 1},
        lanes=lanes,
        queue_states={
            name: state.state for name, lane in lanes.items() if (state := states.of(name, lane)) is not None
        },
        workers={name: workers[queue_of(name)] for name in names},
        troubles=troubles,
        refused=listing.hosts.refused,
        counts=await _counts(settings),
    )


async def _counts(settings: Settings) -> Mapping[str, Mapping[str, ReplicaCount]]:
    try:
        return await replica_counts(settings)
    except (RedisError, OSError) as exc:
        raise FleetUnavailable(f"Redis does not say how hosts fare: {reason_of(exc, 'no answer')}") from exc
