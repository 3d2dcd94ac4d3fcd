"""Checks the settings: secrets that are missing, short, default or used twice, settings that change nothing, and certificates that expire."""

import asyncio
import ipaddress
import ssl
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import parse_qs, unquote, urlsplit

from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.config.setting_sources import PREFIX, misspelt, origin_of, removed, unread_env_file
from toolfleet_registry.redis.urls import is_redis_url, is_sentinel_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock

_SHORTEST = 16  # characters
_FEWEST = 6  # different ones
_DEFAULTS = frozenset(
    """
    admin changeme default guest password postgres rabbitmq redis root secret test toolfleet
    """.split()
)
_MAKE_ONE = "openssl rand -base64 32, then set it"
_OF_URLS = frozenset({"redis_url", "broker_url", "registry_url"})

_NAMED = ("signing_key", "core_secret", "gateway_key", "registry_webhooks_secret")

_CONNECT_SECONDS = 3.0
_SOON_DAYS, _VERY_SOON_DAYS = 30, 7
_DAY = 86_400
_PORTS = {"https": 443, "rediss": 6379, "amqps": 5671}
_RENEW = "Renew the certificate there: openssl s_client -connect {place} </dev/null | openssl x509 -noout -dates"


async def check_secrets(patient: Patient) -> CheckResult:
    """Check the secrets that this process is given."""
    settings = patient.settings
    secrets = secrets_of(settings)
    findings = [*_weak(secrets), *_twice(secrets), *_open(settings), *_unsigned(settings)]
    return CheckResult(tuple(findings), {"set": sorted(secrets)})


def secrets_of(settings: Settings) -> dict[str, str]:
    """Return the secrets that are set, by their names."""
    found = {name: str(getattr(settings, name)) for name in _NAMED if getattr(settings, name)}
    for name in sorted(_OF_URLS):
        password = urlsplit(getattr(settings, name) or "").password
        if password:
            found[f"{name} (its password)"] = unquote(password)
    for number, key in enumerate(settings.signing_keys_old, 1):
        found[f"signing_keys_old, number {number}"] = key
    return found


def _weak(secrets: Mapping[str, str]) -> Iterable[Diagnosis]:
    for name, secret in secrets.items():
        variable = f"TOOLFLEET_{name.partition(' ')[0].partition(',')[0].upper()}"
        why = "An attacker who guesses it can send calls in any user's name, or read all results."
        if secret.lower() in _DEFAULTS:
            yield warning(f"The secret {name} is a well-known default.", why, f"{_MAKE_ONE} in {variable}")
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
                f"{' and '.join(names)} are the same secret.", "A process that has one has the other.", _MAKE_ONE
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
                "Any client that reaches it can read all calls and results, and send calls.",
                "ACL SETUSER fleet on >PASSWORD … (docs/operations/redis.md), and put user and password into the URL",
            )


def _unsigned(settings: Settings) -> Iterable[Diagnosis]:
    if settings.signing_key is None:
        yield remark(
            "Calls are not signed.",
            "Workers run every message in a queue: any client of Redis can call tools in any user's name.",
            "export TOOLFLEET_SIGNING_KEY=$(openssl rand -base64 32), the same for agents and workers",
        )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def check_settings(patient: Patient) -> CheckResult:
    """Check the settings that this process is given."""
    wrong = misspelt(Settings.model_fields, patient.environ)
    is_set = {name for name in Settings.model_fields if _is_set(name, patient)}
    gone = removed(patient.environ)
    findings = [*_misspelt(wrong), *_removed(gone), *_env_file(patient), *_without_effect(patient.settings, is_set)]
    return CheckResult(tuple(findings), {"misspelt": sorted(wrong), "removed": sorted(gone), "set": sorted(is_set)})


def _is_set(name: str, patient: Patient) -> bool:
    return origin_of(name, start=patient.folder, environ=patient.environ).source in {"environment", "file"}


def _misspelt(wrong: dict[str, str | None]) -> Iterable[Diagnosis]:
    for variable, like in sorted(wrong.items()):
        fix = f"unset {variable}" if like is None else f"Call it {like}, or: unset {variable}"
        yield warning(f"{variable} is no setting.", "It changes nothing, although it was set to change something.", fix)


def _removed(gone: dict[str, str]) -> Iterable[Diagnosis]:
    for variable, instead in sorted(gone.items()):
        yield warning(f"{variable} is no setting any more: {instead}.", "It changes nothing.", f"unset {variable}")


def _env_file(patient: Patient) -> Iterable[Diagnosis]:
    if path := unread_env_file(patient.folder):
        text = f"{path} has settings, and only a compose file reads it."
        yield remark(text, "Processes that are started here do not have them.", "set -a; . ./.env; set +a")


def _without_effect(settings: Settings, is_set: Collection[str]) -> Iterable[Diagnosis]:
    urls = (settings.redis_url, settings.broker_url)
    causes = {
        "sentinel_master": ("no URL is one of sentinels", not any(is_sentinel_url(url or "") for url in urls)),
        "visibility_timeout": (
            "RabbitMQ has no leases",
            settings.redis_url is not None and not settings.has_redis_broker,
        ),
        "local_tools_required": ("TOOLFLEET_LOCAL_TOOLS is not set", settings.local_tools is None),
        "local_threads": ("TOOLFLEET_LOCAL_TOOLS is not set", settings.local_tools is None),
        "core_secret": ("TOOLFLEET_CORE_URL is not set", settings.core_url is None),
        "registry_webhooks_secret": ("TOOLFLEET_REGISTRY_WEBHOOKS is not set", not settings.registry_webhooks),
        "scheduler_permission": ("TOOLFLEET_SCHEDULER is not set", not settings.scheduler),
        "probe_address": ("TOOLFLEET_PROBE_PORT is not set", settings.probe_port is None),
        "allow_eviction": ("no Redis of the fleet may be looked at", settings.redis_url is None),
        "oauth_audience": ("TOOLFLEET_OAUTH_ISSUER is not set", settings.oauth_issuer is None),
        "oauth_jwks_url": ("TOOLFLEET_OAUTH_ISSUER is not set", settings.oauth_issuer is None),
        "oauth_claims": ("TOOLFLEET_OAUTH_ISSUER is not set", settings.oauth_issuer is None),
        **{
            f"artifact_{name}": ("TOOLFLEET_ARTIFACT_STORE is not set", settings.artifact_store is None)
            for name in ("from_bytes", "bytes_per_user")
        },
    }
    for name, (cause, is_idle) in causes.items():
        if is_idle and name in is_set:
            variable = f"{PREFIX}{name.upper()}"
            yield warning(f"{variable} has no effect: {cause}.", "It was set to have an effect.", f"unset {variable}")
    yield from _unknown_modules(settings, is_set)


def _unknown_modules(settings: Settings, is_set: Collection[str]) -> Iterable[Diagnosis]:
    """Yield named modules that do not exist: the settings may know nothing of those that were added while the fleet runs."""
    named = {
        "slow_modules": settings.slow_modules,
        "module_timeouts": settings.module_timeouts.keys(),
        "module_concurrency": settings.module_concurrency.keys(),
        "module_headers": settings.module_headers.keys(),
        "coerce_numbers_modules": settings.coerce_numbers_modules,
    }
    known = settings.modules | settings.hosts.keys()
    for name, modules in named.items():
        unknown = sorted(set(modules) - known)
        if name in is_set and known and unknown:
            yield remark(
                f"{PREFIX}{name.upper()} names modules that the settings do not have: {', '.join(unknown)}.",
                "For them it has an effect only if they were added while the fleet runs.",
                "toolfleet modules list shows all modules; correct the names",
            )


async def check_certificates(patient: Patient) -> CheckResult:
    """Check certificates as a process of the fleet would verify them, with the authorities that the URL names or this machine has."""
    places = sorted(_places(patient.settings))
    results = await asyncio.gather(*(_days_left(*place) for place in places))
    findings, facts = list[Diagnosis](), dict[str, float | str]()
    for (host, port, _), result in zip(places, results, strict=True):
        facts[f"{host}:{port}"] = result
        findings += _certificate_findings(f"{host}:{port}", result)
    return CheckResult(tuple(findings), {"days_left": facts})


def _places(settings: Settings) -> set[tuple[str, int, str]]:
    """Return the hosts, ports, and files of authorities, or '' for those of this machine."""
    urls = [settings.redis_url, settings.broker_url, settings.core_url, *settings.module_services.values()]
    found = set[tuple[str, int, str]]()
    for url in urls:
        parts = urlsplit(url or "")
        port = _PORTS.get(parts.scheme)
        options = parse_qs(parts.query)
        if port is None or not parts.hostname or options.get("ssl_cert_reqs") == ["none"]:
            continue
        found.add((parts.hostname, parts.port or port, options.get("ssl_ca_certs", [""])[0]))
    return found


async def _days_left(host: str, port: int, authorities: str) -> float | str:
    """Return for how many more days its certificate is valid, or why that is unknown."""
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        certificate = writer.get_extra_info("peercert") or {}
        writer.transport.abort()
    except ssl.SSLCertVerificationError as exc:
        return f"refused: {exc.verify_message}"
    except (OSError, ssl.SSLError) as exc:
        return f"not reached: {exc or 'no answer'}"
    return (ssl.cert_time_to_seconds(certificate["notAfter"]) - machine_clock.wall()) / _DAY


def _certificate_findings(place: str, result: float | str) -> Iterable[Diagnosis]:
    fix = _RENEW.format(place=place)
    if isinstance(result, str):
        if result.startswith("refused"):
            text = f"The certificate of {place} is {result}."
            yield error(text, "Clients that verify it do not connect.", fix)
        return  # who is not reached at all is another check's
    if result < _SOON_DAYS:
        make = error if result < _VERY_SOON_DAYS else warning
        yield make(
            f"The certificate of {place} ends in {result:.0f} days.", "From then on clients do not connect.", fix
        )
