"""Hosts a program that is an MCP server as a trusted module of a fleet."""

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from support.fleet import TestBed, program


@contextmanager
def hosted(bed: TestBed, module: str, command: Sequence[str], env: Mapping[str, str]) -> Generator[None]:
    """Serve its tools, with its word for what they do; `env` is what it is given beside the path."""
    given = [word for name, text in env.items() for word in ("--env", f"{name}={text}")]
    host = [sys.executable, "-m", "toolfleet_cli", "host", "mcp", module, "--trusted", *given, "--", *command]
    with program(bed, host, f"host-{module}", ready="is served at http://"):
        yield


def paths() -> str:
    """Where a program finds what tests share."""
    return os.pathsep.join(path for path in sys.path if path)
