"""Decides whether this process is traced, and by which provider: one that the program has set is used as it is."""

import logging
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from toolfleet_registry.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from toolfleet_registry.tracing.port import Tracing

SWITCH: Final = "TOOLFLEET_TRACES"
"""The variable of the setting `traces`, for modules, which read no settings."""
CONTENTS: Final = "TOOLFLEET_TRACE_CONTENTS"

_made = list["Tracing"]()  # what this process has made for itself: once, however many fleets are opened in it

_log = logging.getLogger("toolfleet.traces")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_MISSING = "Traces need OpenTelemetry, which is not installed here: pip install 'toolfleet[otel]'."


def tracing_of(
    switch: bool | None,  # noqa: FBT001 - the setting's value
    service: str,
    *,
    is_global: bool = False,
    has_contents: bool = False,
) -> "Tracing | None":
    """Return the tracing of this process; `None` if it is not traced, and nothing is imported for it.

    `switch`: whether it shall be; `None`: if OpenTelemetry's variables or a provider say so. `service` is its name in
    traces. `is_global`: if there is no provider, one is set for all its code. Raises `SettingsError` if it shall be
    traced and cannot be.
    """
    if switch is False or _is_true(os.environ.get("OTEL_SDK_DISABLED")):
        return None
    if _made:  # by an earlier one of the same process
        return _made[0]
    if (provider := provider_of_others()) is not None:
        from toolfleet_registry.tracing.otel_tracing import OtelTracing  # noqa: PLC0415 - only where it is wanted

        return OtelTracing(provider, version_here(), has_contents=has_contents)
    if not switch and not is_wanted_by_environment():
        return None
    try:
        from toolfleet_registry.tracing.provider import make_tracing  # noqa: PLC0415 - as above
    except ImportError as exc:
        if switch:
            raise SettingsError(_MISSING) from exc
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set. %s", _MISSING)
        return None
    _made.append(make_tracing(service, version_here(), is_global=is_global, has_contents=has_contents))
    return _made[0]


def switch_here() -> bool | None:
    """Return the value of `TOOLFLEET_TRACES`, for a process without settings.

    Raises `SettingsError` for an invalid one.
    """
    said = os.environ.get(SWITCH, "").strip().lower()
    if said and said not in _TRUE | _FALSE:
        raise SettingsError(f"{SWITCH} is 1 or 0, not {said[:20]!r}.")
    return said in _TRUE if said else None


def version_here() -> str:
    """Our version, as traces say it."""
    return version("toolfleet-sdk")


def is_wanted_by_environment() -> bool:
    """Return whether OpenTelemetry's own variables say where traces go."""
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return any(os.environ.get(name) for name in _ENDPOINTS)


def provider_of_others() -> "TracerProvider | None":
    """The provider that this process has already; `None` without one, and nothing is imported to find out."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - it is there already

    if os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):  # asked for by name: OpenTelemetry loads it
        return trace.get_tracer_provider()
    found = trace.get_tracer_provider()
    return None if isinstance(found, trace.ProxyTracerProvider) else found


def _is_true(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"
