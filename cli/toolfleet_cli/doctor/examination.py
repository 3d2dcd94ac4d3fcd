"""Runs all checks at once, each with a deadline, and collects what they find. Nothing that hangs keeps the others waiting."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError

from toolfleet_cli.console.output import shown_url
from toolfleet_cli.doctor.check import Check, Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, Severity, error, warning
from toolfleet_registry.errors import BrokerAway, FleetError
from toolfleet_registry.redis.servers import reason_of

_REACH_SECONDS = 3.0
_LEFT_OUT = "Redis does not answer"


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of an examination: findings by check, facts by check, and the reason for each check that could not run."""

    findings: Sequence[tuple[str, Diagnosis]]
    facts: Mapping[str, Mapping[str, Any]]
    blind: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def exit_code(self) -> int:
        """0: nothing of weight was found. 1: something was. 2: the doctor could not look everywhere."""
        if self.blind:
            return 2
        return int(any(finding.weighs for _, finding in self.findings))


async def examine(patient: Patient, checks: Iterable[Check]) -> Examination:
    """Examine the fleet. Raises nothing but cancellation; takes a few seconds more than the slowest check may."""
    reason = await _unreachable(patient)
    found = list[tuple[str, Diagnosis]]()
    if reason is not None:
        found.append(("redis", _away(patient, reason)))
    facts, blind = dict[str, Mapping[str, Any]](), dict[str, str]()
    asked = list[Check]()
    for check in checks:
        if check.asks_redis and reason is not None:
            blind[check.name] = _LEFT_OUT
        else:
            asked.append(check)
    for check, result in zip(asked, await asyncio.gather(*(_run(check, patient) for check in asked)), strict=True):
        if isinstance(result, CheckResult):
            found += [(check.name, finding) for finding in result.findings]
            facts[check.name] = result.facts
        else:
            blind[check.name] = result
            found.append((check.name, _blind(check, result)))
    order = list(Severity)
    return Examination(sorted(found, key=lambda one: order.index(one[1].severity)), facts, blind)


async def _run(check: Check, patient: Patient) -> CheckResult | str:
    """Return the check's result, or why it could not run."""
    try:
        async with asyncio.timeout(check.seconds):
            return await check.examine(patient)
    except BrokerAway as exc:  # which says of what it speaks
        return str(exc).rstrip(".")
    except (RedisError, OSError, FleetError) as exc:  # TimeoutError is an OSError
        return reason_of(exc, f"no answer within {check.seconds:g} s")
    except Exception as exc:  # noqa: BLE001 - a defect of one check must not hide what the others find
        return f"a defect of this check: {exc!r}"


async def _unreachable(patient: Patient) -> str | None:
    try:
        async with asyncio.timeout(_REACH_SECONDS), patient.redis() as redis:
            await redis.execute_command("PING")
    except (RedisError, OSError, FleetError) as exc:
        return reason_of(exc, f"no answer within {_REACH_SECONDS:g} s")
    return None


def _away(patient: Patient, reason: str) -> Diagnosis:
    url = shown_url(str(patient.settings.redis_url))
    return error(
        f"Redis at {url} does not answer: {reason}.",
        "Without it no call is published, begun or ended; calls that run go on, and their results wait for it.",
        "Start Redis, or correct TOOLFLEET_REDIS_URL: `toolfleet config` says where it is set. `toolfleet redis-cli ping` tries it.",
    )


def _blind(check: Check, reason: str) -> Diagnosis:
    return warning(
        f"The check {check.name!r} could not look.",
        "What it would have found is not known.",
        "Run `toolfleet doctor` again; if Redis answers slowly, look at its load first: `toolfleet redis-cli info`.",
        quoted=f"{reason}.",
    )
