"""Configures how an MCP server is started or reached, and how its sessions are shared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolfleet_modules.hosts.mcp.oauth.authorizer import Authorizer
from toolfleet_modules.hosts.processes.fence import Fence
from toolfleet_modules.hosts.serving.options import HostOptions


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A program that speaks over its standard streams. `environment` is added to that of the fence; `directory` is where it runs, `None` for its own."""

    command: tuple[str, ...]
    fence: Fence = field(default_factory=lambda: Fence(memory_bytes=None))
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server's Streamable HTTP endpoint. `headers` are sent with each request, and a token of the `authorizer`, if there is one."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    authorizer: Authorizer | None = None


@dataclass(frozen=True, slots=True)
class McpOptions(HostOptions):
    """How a server is served.

    `asks`: a server of an older version may ask whoever called in the middle of a call; each user has a session then, and one
    call at a time in it. `scope`: whether callers share its session, or each user has one; of those there are at most `most_sessions`, and one that
    nobody has used for `idle_seconds` ends. `trusted`: its annotations say what repeating a call would do. `handshake_seconds`:
    for it to start and to say what it speaks. `refresh_seconds`: between two lists of its tools where it tells of no changes.
    `stuck_seconds`: how long it may be silent after a call that did not come back, before it is started anew. `pin`: whether the
    fleet withholds what it changes or adds, until an operator approves it.
    """

    server: StdioServer | HttpServer
    scope: Literal["shared", "caller"] = "shared"
    trusted: bool = False
    asks: bool = False
    pin: bool = False
    most_sessions: int = 16
    idle_seconds: float = 300.0
    handshake_seconds: float = 30.0
    refresh_seconds: float = 60.0
    stuck_seconds: float = 30.0
