"""Counts the fleet's keys by their rules, and says which grow without an end."""

from collections.abc import Iterable
from dataclasses import dataclass

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, remark, warning
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.key_census import KeyCensus, count_keys

_MOST = 200_000  # keys: a second or two of Redis, a millisecond at a time
_NEARLY = 0.9


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Checks the stored keys; of more than 200,000 only the first ones that Redis returns."""

    name: str = "keys"
    asks_redis: bool = True
    seconds: float = 20.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings, keys = patient.settings, patient.settings.keys
        async with patient.redis() as redis:
            census = await count_keys(redis, keys, at_most=_MOST)
            sizes = {
                "TOOLFLEET_DEAD_LETTERS_KEPT": (await redis.zcard(keys.dead_order), settings.dead_letters_kept),
                "TOOLFLEET_DEAD_WAKES_KEPT": (await redis.zcard(keys.dead_wakes_order), settings.dead_wakes_kept),
            }
        facts = {
            "seen": census.seen,
            "is_whole": census.is_whole,
            "by_rule": dict(census.by_rule),
            "endless": dict(census.endless),
            "foreign": census.foreign,
        }
        return CheckResult((*_findings(census, settings), *_full(sizes)), facts)


def _findings(census: KeyCensus, settings: Settings) -> Iterable[Diagnosis]:
    for pattern, count in census.endless.items():
        yield warning(
            f"{count} keys like {settings.key_prefix}{pattern} never expire.",
            "They stay for ever, and fill Redis.",
            "Something else than Toolfleet writes there, or a defect does. Have a look, then give them an end: "
            "toolfleet redis-cli expire KEY 86400. Please report it with `toolfleet doctor --bundle FILE`.",
        )
    if census.foreign:
        yield remark(
            f"{census.foreign} keys in this database are none of this fleet's.",
            "Whatever else uses it can fill it, or flush it.",
            "Give the fleet a database or a prefix of its own (TOOLFLEET_KEY_PREFIX).",
        )


def _full(sizes: dict[str, tuple[int, int]]) -> Iterable[Diagnosis]:
    for name, (size, most) in sizes.items():
        if size > _NEARLY * most:
            text = f"{size} of at most {most} are kept ({name})."
            yield warning(
                text,
                "The oldest are dropped from then on, unseen.",
                "toolfleet dead-letters list, then replay or drop them",
            )
