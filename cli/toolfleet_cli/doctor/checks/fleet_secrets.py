"""Finds secrets that are missing, short, default, or used twice. It shows none of them."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, remark, warning
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings

_SHORTEST = 16  # characters
_FEWEST = 6  # different ones
_DEFAULTS = frozenset(
    {
        "admin",
        "changeme",
        "default",
        "guest",
        "password",
        "postgres",
        "rabbitmq",
        "redis",
        "root",
        "secret",
        "test",
        "toolfleet",
    }
)
_MAKE_ONE = "openssl rand -base64 32, then set it"
_OF_URLS = frozenset({"redis_url", "broker_url", "registry_url"})


@dataclass(frozen=True, slots=True)
class SecretCheck:
    """Checks the secrets that this process is given."""

    name: str = "secrets"
    asks_redis: bool = False
    seconds: float = 5.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings = patient.settings
        secrets = secrets_of(settings)
        findings = [*_weak(secrets), *_twice(secrets), *_open(settings), *_unsigned(settings)]
        return CheckResult(tuple(findings), {"set": sorted(secrets)})


def secrets_of(settings: Settings) -> dict[str, str]:
    """The secrets that are set, by what they are."""
    found = {name: str(getattr(settings, name)) for name in _NAMED if getattr(settings, name)}
    for name in sorted(_OF_URLS):
        password = urlsplit(getattr(settings, name) or "").password
        if password:
            found[f"{name} (its password)"] = unquote(password)
    for number, key in enumerate(settings.signing_keys_old, 1):
        found[f"signing_keys_old, number {number}"] = key
    return found


_NAMED = ("signing_key", "core_secret", "gateway_key", "registry_webhooks_secret")


def _weak(secrets: Mapping[str, str]) -> Iterable[Diagnosis]:
    for name, secret in secrets.items():
        variable = f"TOOLFLEET_{name.partition(' ')[0].partition(',')[0].upper()}"
        why = "Whoever guesses it can send calls in anybody's name, or read all results."
        if secret.lower() in _DEFAULTS:
            yield warning(f"The secret {name} is one that everybody knows.", why, f"{_MAKE_ONE} in {variable}")
        elif len(secret) < _SHORTEST or len(set(secret)) < _FEWEST:
            yield warning(
                f"The secret {name} is short ({len(secret)} characters) or has few different ones.",
                why,
                f"{_MAKE_ONE} in {variable}",
            )


def _twice(secrets: Mapping[str, str]) -> Iterable[Diagnosis]:
    by_value = dict[str, list[str]]()
    for name, secret in secrets.items():
        by_value.setdefault(secret, []).append(name)
    for names in by_value.values():
        if len({name for name in names if not name.endswith("(its password)")}) > 1:
            yield warning(
                f"{' and '.join(names)} are the same secret.", "Whoever is given one has the other.", _MAKE_ONE
            )


def _open(settings: Settings) -> Iterable[Diagnosis]:
    for name in ("redis_url", "broker_url"):
        url = getattr(settings, name)
        if url is None or not is_redis_url(url) or url.startswith("unix"):
            continue
        parts = urlsplit(url)
        if parts.hostname and not parts.password and not _is_here(parts.hostname):
            yield warning(
                f"{name} has no password, and Redis is on another machine.",
                "Whoever reaches it reads all calls and results, and can send calls.",
                "ACL SETUSER fleet on >PASSWORD … (docs/operations/redis.md), and put user and password into the URL",
            )


def _unsigned(settings: Settings) -> Iterable[Diagnosis]:
    if settings.signing_key is None:
        yield remark(
            "Calls are not signed.",
            "Workers run whatever lies in a queue: whoever reaches Redis can call tools in anybody's name.",
            "export TOOLFLEET_SIGNING_KEY=$(openssl rand -base64 32), the same for agents and workers",
        )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
