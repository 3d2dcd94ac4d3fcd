"""Holds what a transport gives a session: where it reads and writes, and a lane for calls if there is one."""

from dataclasses import dataclass
from typing import Any

from toolfleet_modules.hosts.mcp.transports.call_lane import CallLane
from toolfleet_modules.hosts.mcp.transports.exchanges import SentRequests
from toolfleet_modules.hosts.mcp.transports.standalone_stream import StandaloneStream


@dataclass(frozen=True, slots=True)
class MessageStreams:
    """`incoming` and `outgoing` are as the SDK has them. Without `calls`, calls go there as well.

    `requests`: what has become of each request that the SDK sends. `standalone`: how a server at a URL speaks by itself.
    """

    incoming: Any
    outgoing: Any
    requests: SentRequests
    calls: CallLane | None = None
    standalone: StandaloneStream | None = None
