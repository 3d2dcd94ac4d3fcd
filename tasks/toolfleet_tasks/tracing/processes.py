"""Says by which name each kind of process writes traces, by the settings."""

from toolfleet_registry.settings import Settings
from toolfleet_registry.tracing.port import Tracing
from toolfleet_registry.tracing.switch import tracing_of


def agents_tracing(settings: Settings) -> Tracing | None:
    """What an agent's process is traced with: as a guest in it, so that others find no provider set by us."""
    return _tracing(settings, "toolfleet-agent", is_global=False)


def process_tracing(settings: Settings, service: str) -> Tracing | None:
    """What a process of the fleet's own is traced with, which is all that runs in it; `service` is its name in traces."""
    return _tracing(settings, service, is_global=True)


def _tracing(settings: Settings, service: str, *, is_global: bool) -> Tracing | None:
    return tracing_of(
        settings.traces,
        service,
        is_global=is_global,
        has_contents=settings.trace_contents,
    )
