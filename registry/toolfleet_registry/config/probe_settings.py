"""Declares the settings for where a worker or beat answers probes over TCP; a part of `Settings`."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings


class ProbeSettings(BaseSettings, defer_build=True):
    """A Unix socket, which only its user reaches, is always there; `toolfleet worker --check` asks at that."""

    probe_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    """Answer `GET /livez` and `GET /readyz` on this port; None, for several processes share a machine: on none."""
    probe_address: str = "127.0.0.1"
    """Of that port. Kubernetes asks from elsewhere and needs 0.0.0.0; whoever reaches it learns that the process lives."""
