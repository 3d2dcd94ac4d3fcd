"""Runs all checks at once, each with a deadline, and shows what they find. A check that hangs does not stop the others."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import RedisError
from rich.text import Text

from toolfleet_cli.console import add_row, note, out, plain, say, say_json, show_table, shown_url, table
from toolfleet_cli.doctor.check import Check, CheckResult, Diagnosis, Patient, Severity, error, warning
from toolfleet_cli.doctor.queues import CANARY_SECONDS, check_manifests, check_queues, send_canaries
from toolfleet_cli.doctor.servers import check_keys, check_rabbitmq, check_redis, check_rights
from toolfleet_cli.doctor.settings import check_certificates, check_secrets, check_settings
from toolfleet_cli.doctor.workers import check_clocks, check_leases, check_versions, check_workers
from toolfleet_registry.errors import BrokerAway, FleetError
from toolfleet_registry.redis.servers import reason_of

_REACH_SECONDS = 3.0
_LEFT_OUT = "Redis does not answer"

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: ""}
_ROWS = 20  # of canaries; --json has all

CHECKS: Final[Sequence[Check]] = (
    Check("redis", check_redis, seconds=15),
    Check("redis rights", check_rights, seconds=10),
    Check("rabbitmq", check_rabbitmq, seconds=20, asks_redis=False),
    Check("workers", check_workers, seconds=12),
    Check("queues", check_queues, seconds=15),
    Check("canary", send_canaries, seconds=CANARY_SECONDS),
    Check("manifests", check_manifests, seconds=15),
    Check("leases", check_leases, seconds=8),
    Check("versions", check_versions, seconds=8),
    Check("clocks", check_clocks, seconds=8),
    Check("keys", check_keys, seconds=20),
    Check("certificates", check_certificates, seconds=15, asks_redis=False),
    Check("secrets", check_secrets, seconds=5, asks_redis=False),
    Check("settings", check_settings, seconds=5, asks_redis=False),
)
"""All checks. Each is independent of the others."""


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


def as_json(found: Examination, *, with_quotes: bool = True) -> dict[str, Any]:
    """Return the examination as JSON, with or without quoted text of others."""
    return {
        "exit_code": found.exit_code,
        "findings": [
            {
                "check": check,
                "severity": finding.severity.value,
                "what": finding.shown if with_quotes else finding.what,
                "why": finding.why,
                "mend": finding.fix,
            }
            for check, finding in found.findings
        ],
        "could_not_look": {name: reason if with_quotes else _kind_of(reason) for name, reason in found.blind.items()},
        "facts": {check: dict(facts) for check, facts in found.facts.items()},
    }


def _kind_of(reason: str) -> str:
    """Return a reason without the text in brackets after the name of an error, which may be anything."""
    return reason.partition("(")[0].rstrip()


def show(found: Examination, *, in_json: bool) -> None:
    """Print it on stdout."""
    if in_json:
        say_json(as_json(found))
        return
    for check, finding in found.findings:
        word = Text(f"{finding.severity.value.upper():8}", style=_COLOURS[finding.severity])
        out.print(word + Text(plain(f"{check}: {finding.shown}")))
        say(f"        why   {finding.why}")
        say(f"        fix   {finding.fix}")
        say("")
    _show_canaries(found)
    if found.blind:
        note(f"Not looked at: {', '.join(f'{name} ({reason})' for name, reason in sorted(found.blind.items()))}")
    say(_sum(found))


def _show_canaries(found: Examination) -> None:
    canaries = found.facts.get("canary", {}).get("canaries", [])
    if not canaries:
        return
    shown = table("QUEUE", "CANARY", "QUEUED", "HEALTH", "TOTAL", "WORKER")
    for one in canaries[:_ROWS]:
        health = f"{one['health']} {_ms(one['health_seconds'])}" if one["health"] else "-"
        row = (
            one["queue"],
            one["fate"],
            _ms(one["queued_seconds"]),
            health,
            _ms(one["total_seconds"]),
            one["worker"] or "-",
        )
        add_row(shown, *row)
    show_table(shown)
    if len(canaries) > _ROWS:
        say(f"{len(canaries) - _ROWS} queues more: --json has all.")
    say("")


def _sum(found: Examination) -> str:
    counted = {each: sum(finding.severity is each for _, finding in found.findings) for each in Severity}
    if not found.findings:
        return f"{len(found.facts)} checks found nothing."
    parts = [f"{count} {each.value}{'s' if count != 1 else ''}" for each, count in counted.items() if count]
    return f"{len(found.facts)} checks found {', '.join(parts)}."


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"
