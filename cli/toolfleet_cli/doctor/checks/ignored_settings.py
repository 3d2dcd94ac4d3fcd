"""Finds settings that change nothing: misspelt variables, files that are not read, and options without effect."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, remark, warning
from toolfleet_registry.config.setting_sources import PREFIX, misspelt, origin_of
from toolfleet_registry.redis.urls import is_redis_url, is_sentinel_url
from toolfleet_registry.settings import Settings


@dataclass(frozen=True, slots=True)
class SettingCheck:
    """Goes by what this process is given."""

    name: str = "settings"
    asks_redis: bool = False
    seconds: float = 5.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        wrong = misspelt(Settings.model_fields, patient.environ)
        is_set = {name for name in Settings.model_fields if _is_set(name, patient)}
        findings = [*_misspelt(wrong), *_env_file(patient), *_without_effect(patient.settings, is_set)]
        return CheckResult(tuple(findings), {"misspelt": sorted(wrong), "set": sorted(is_set)})


def _is_set(name: str, patient: Patient) -> bool:
    return origin_of(name, start=patient.folder, environ=patient.environ).source in {"environment", "file"}


def _misspelt(wrong: dict[str, str | None]) -> Iterable[Diagnosis]:
    for variable, like in sorted(wrong.items()):
        mend = f"unset {variable}" if like is None else f"Call it {like}, or: unset {variable}"
        yield warning(f"{variable} is no setting.", "It changes nothing, and whoever set it thinks that it does.", mend)


def _env_file(patient: Patient) -> Iterable[Diagnosis]:
    path = patient.folder / ".env"
    try:
        is_meant = PREFIX in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if is_meant:
        text = f"{path} has settings, and only a compose file reads it."
        yield remark(text, "Processes that are started here do not have them.", "set -a; . ./.env; set +a")


def _without_effect(settings: Settings, is_set: Collection[str]) -> Iterable[Diagnosis]:
    is_redis = is_redis_url(str(settings.broker))
    urls = (settings.redis_url, settings.broker_url)
    causes = {
        "sentinel_master": ("no URL is one of sentinels", not any(is_sentinel_url(url or "") for url in urls)),
        "visibility_timeout": ("RabbitMQ has no leases", settings.redis_url is not None and not is_redis),
        "local_tools_required": ("TOOLFLEET_LOCAL_TOOLS is not set", settings.local_tools is None),
        "local_threads": ("TOOLFLEET_LOCAL_TOOLS is not set", settings.local_tools is None),
        "core_secret": ("TOOLFLEET_CORE_URL is not set", settings.core_url is None),
        "core_timeout_seconds": ("TOOLFLEET_CORE_URL is not set", settings.core_url is None),
        "registry_webhooks_secret": ("TOOLFLEET_REGISTRY_WEBHOOKS is not set", not settings.registry_webhooks),
        "scheduler_permission": ("TOOLFLEET_SCHEDULER is not set", not settings.scheduler),
        "probe_address": ("TOOLFLEET_PROBE_PORT is not set", settings.probe_port is None),
        "allow_eviction": ("no Redis of the fleet may be looked at", settings.redis_url is None),
        "gate_blocks_once": ("TOOLFLEET_GATE_FAILS_CLOSED blocks all calls", settings.gate_fails_closed),
        "oauth_audience": ("TOOLFLEET_OAUTH_ISSUER is not set", settings.oauth_issuer is None),
        "oauth_jwks_url": ("TOOLFLEET_OAUTH_ISSUER is not set", settings.oauth_issuer is None),
        "oauth_claims": ("TOOLFLEET_OAUTH_ISSUER is not set", settings.oauth_issuer is None),
    }
    for name, (cause, is_idle) in causes.items():
        if is_idle and name in is_set:
            variable = f"{PREFIX}{name.upper()}"
            yield warning(
                f"{variable} has no effect: {cause}.", "Whoever set it thinks that it has one.", f"unset {variable}"
            )
    yield from _unknown_modules(settings, is_set)


def _unknown_modules(settings: Settings, is_set: Collection[str]) -> Iterable[Diagnosis]:
    """Yield named modules that do not exist: the settings may know nothing of those that were added while the fleet runs."""
    named = {
        "slow_modules": settings.slow_modules,
        "module_timeouts": settings.module_timeouts.keys(),
        "module_concurrency": settings.module_concurrency.keys(),
        "module_backlogs": settings.module_backlogs.keys(),
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
