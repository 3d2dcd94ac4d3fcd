"""Declares what a fleet tells of itself to those who watch it."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from toolfleet_registry.config.setting_values import Count


class MetricsSettings(BaseSettings, defer_build=True):
    """Settings of metrics.

    Without a port nothing is counted, except in a gateway, which serves `GET /metrics` to operators.
    """

    metrics_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    """Answer `GET /metrics` for Prometheus on this port, in each worker, gateway and host; None: on none."""
    metrics_ports: Annotated[int, Field(gt=0, le=1_000)] = 16
    """So many ports, from that one on, are tried until one is free: processes that share a machine share its settings."""
    metrics_address: str = "127.0.0.1"
    """Of that port. Prometheus on another machine needs 0.0.0.0; whoever reaches it reads the names of modules and tools."""
    metrics_tools: Count = 200
    """Tools that one process counts by themselves; what comes later is counted as `other`. Each is a few series in Prometheus."""


class TraceSettings(BaseSettings, defer_build=True):
    """Settings of traces. OpenTelemetry's own variables say where traces go, and how many are kept."""

    traces: bool | None = None
    """Whether this process writes traces. None: where it has a provider of OpenTelemetry, or OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    trace_contents: bool = False
    """Whether traces have arguments and results as well, without those that are sensitive or may be personal data."""
