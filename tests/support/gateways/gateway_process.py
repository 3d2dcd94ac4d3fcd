"""A real `toolfleet gateway` process, and clients of it."""

import re
import ssl
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import httpx

from support.fleet import TestBed, program
from support.waiting import PATIENCE_SECONDS
from support.worker_process import WorkerProcess
from toolfleet_registry.access import new_key_text
from toolfleet_registry.settings import Settings

READY = "toolfleet gateway ready"
LEAVE_SECONDS = "toolfleet_registry.config.gateway_settings.GATEWAY_LEAVE_SECONDS"
"""The constant by its dotted name: no load balancer is here to be waited for."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Knows no certificates: to read all of the machine takes each client much longer than its requests."""


@dataclass(frozen=True)
class ServedGateway:
    """A gateway that is ready, wherever it runs: its `url`, and the `key` that it was given."""

    url: str
    key: str

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        found = httpx.URL(self.url)
        return found.host, found.port or 0

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """A client with its key, or another one."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=2 * PATIENCE_SECONDS, trust_env=False, verify=NO_TLS
        )


@dataclass(frozen=True)
class Gateway(ServedGateway):
    """One in a process of its own."""

    process: WorkerProcess


@contextmanager
def gateway_process(
    bed: TestBed,
    *options: str,
    settings: Settings | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    constants: Mapping[str, float] = MappingProxyType({}),
) -> Generator[Gateway]:
    """Run `toolfleet gateway` on a free port from its readiness on; `constants` as of `program`."""
    command = [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", "0", *options]
    key = new_key_text().text  # one of its own would not be made where the registry has keys
    usual, others = {"TOOLFLEET_GATEWAY_KEY": key, **env}, {LEAVE_SECONDS: 0, **constants}
    with program(bed, command, "gateway", ready=READY, settings=settings, env=usual, constants=others) as process:
        said = process.said()
        yield Gateway(_found(rf"{READY} url=(\S+)", said), usual["TOOLFLEET_GATEWAY_KEY"], process)


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]
