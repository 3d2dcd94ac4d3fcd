"""Checks at each Redis that the fleet may do what it does there, and says what its user may not."""

from collections.abc import Iterable
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error
from toolfleet_registry.redis.keys import Keys, canary_key
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.system import randomness

_SECONDS_LEFT = 5


@dataclass(frozen=True, slots=True)
class RightsCheck:
    """Leaves one key, which expires after seconds."""

    name: str = "redis rights"
    asks_redis: bool = True
    seconds: float = 10.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        findings, refused = list[Diagnosis](), dict[str, list[str]]()
        for name, url in patient.servers().items():
            async with async_client(url, master=patient.settings.sentinel_master, timeout_seconds=3) as redis:
                refused[name] = await _refused(redis, patient.settings.keys)
            findings += _findings(name, refused[name], patient.settings.key_prefix)
        return CheckResult(tuple(findings), {"refused": refused})


async def _refused(redis: Redis, keys: Keys) -> list[str]:
    """The commands that this user may not send, of those that agents and workers do."""
    key, channel = canary_key(keys, randomness.uuid4().hex), keys.manifests_changed
    tried: list[tuple[str | int, ...]] = [
        ("TIME",),
        ("EVAL", "redis.call('SET', KEYS[1], 1, 'EX', ARGV[1]) return 1", 1, key, _SECONDS_LEFT),
        ("GET", key),
        ("PUBLISH", channel, ""),
        ("PUBSUB", "CHANNELS", keys.holder("*")),
        ("SCAN", 0, "COUNT", 1),
        ("LLEN", keys.queue("toolfleet.control")),
        ("ZCARD", keys.jobs_due),
        ("XLEN", keys.audit),
        ("INFO", "server"),
    ]
    refused = list[str]()
    for command in tried:
        try:
            await redis.execute_command(*command)
        except (NoPermissionError, AuthenticationError):
            refused.append(str(command[0]))
        except ResponseError as exc:
            if "NOPERM" in str(exc) or "acl" in str(exc).lower():  # from inside a script, too
                refused.append(str(command[0]))
    return refused


def _findings(name: str, refused: list[str], prefix: str) -> Iterable[Diagnosis]:
    if refused:
        names = ", ".join(refused)
        yield error(
            f"{name} refuses {names} to this user.",
            "Calls that need it end as `fleet_unavailable`, or workers miss each other.",
            f"ACL SETUSER NAME resetchannels ~{prefix}* &{prefix}* -@all +@read +@write +@connection +@pubsub +@transaction "
            "+@scripting +time -@dangerous +info (docs/operations/redis.md)",
        )
