"""Declares the settings for traces; a part of `Settings`."""

from pydantic_settings import BaseSettings


class TraceSettings(BaseSettings, defer_build=True):
    """Whether calls are traced. Where traces go, and how many are kept, OpenTelemetry's own variables say."""

    traces: bool | None = None
    """Whether this process writes traces. None: where it has a provider of OpenTelemetry, or OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    trace_contents: bool = False
    """Whether traces have arguments and results as well, without those that are sensitive or may be personal data."""
