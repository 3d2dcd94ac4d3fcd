"""Says by which name each kind of process writes traces, by the settings."""

from toolfleet_registry.settings import Settings
from toolfleet_registry.tracing.port import Tracing
from toolfleet_registry.tracing.switch import tracing_of


def agents_tracing(settings: Settings) -> Tracing | None:
    """Return the tracing of an agent's process: as a guest in it, so that no global provider is set."""
    return _tracing(settings, "toolfleet-agent", is_global=False)


def process_tracing(settings: Settings, service: str) -> Tracing | None:
    """Return the tracing of one of the fleet's own processes; `service` is its name in traces."""
    return _tracing(settings, service, is_global=True)


def _tracing(settings: Settings, service: str, *, is_global: bool) -> Tracing | None:
    return tracing_of(
        settings.traces,
        service,
        is_global=is_global,
        has_contents=settings.trace_contents,
    )
