"""Configures how an MCP server is started or reached, and how its sessions are shared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolfleet_modules.hosts.fence import Fence
from toolfleet_modules.hosts.host import HostOptions
from toolfleet_modules.hosts.mcp.oauth.authorizer import Authorizer


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
    """The options of an MCP server's host.

    `asks`: a server of an older version may ask the caller in the middle of a call; each user has a session then, and
    one call at a time in it. `scope`: whether callers share its session, or each user has one; of those there are at
    most `most_sessions`, and one that is unused for `idle_seconds` ends. `trusted`: its annotations determine the
    effect of repeating a call. `handshake_seconds`: for its start and its handshake. `refresh_seconds`: between two
    lists of its tools if it notifies of no changes. `stuck_seconds`: how long it may be silent after a call that did
    not come back, before it is restarted. `pin`: whether the fleet withholds changed or added tools, until an operator
    approves them.
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
