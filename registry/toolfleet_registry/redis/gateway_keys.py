"""Builds the Redis keys of gateways: each has its rule in `redis/key_rules.py`."""

import hashlib
from dataclasses import dataclass

from toolfleet_registry.redis.key_rules import OURS
from toolfleet_registry.redis.keys import Keys


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """The gateways' keys of the fleet with these other keys."""

    keys: Keys

    def requests(self, holder: str) -> str:
        """The number of requests that the holder of a key may send now.

        Expires when the full rate is available again.
        """
        return f"{self._begin}requests:{_digest(holder)}"

    def streams(self, holder: str) -> str:
        """The event streams that the holder of a key has open, by until when its gateway has said so. Expires with the last."""
        return f"{self._begin}streams:{_digest(holder)}"

    def console_signed_out(self, csrf: str) -> str:
        """The mark of a signed-out session of the console. Expires after the session's twelve hours."""
        return f"{self.keys.prefix}{OURS}console-signed-out:{_digest(csrf)}"

    def mcp_followers(self, call_id: str) -> str:
        """The number of MCP clients that follow a call, and whether it was cancelled when none did. Expires."""
        return f"{self.keys.prefix}{OURS}mcp-followers:{call_id}"

    def mcp_window(self, intention: str) -> str:
        """The call that stands for all calls of one user, tool and arguments within a window.

        Expires with the window.
        """
        return f"{self.keys.prefix}{OURS}mcp-window:{_digest(intention)}"

    def mcp_session(self, session_id: str) -> str:
        """The session of an older MCP client: its owner, and what the client has said of itself, as JSON.

        Expires when it is silent.
        """
        return f"{self.keys.prefix}{OURS}mcp-session:{_digest(session_id)}"

    def mcp_sessions(self, holder: str) -> str:
        """A set: the keys of the sessions that older MCP clients have opened with one key. Expires days after the last was opened."""
        return f"{self.keys.prefix}{OURS}mcp-sessions:{_digest(holder)}"

    def mcp_request(self, session_id: str, request_id: str | int) -> str:
        """The call that a request of an older MCP client's session has become. Expires with the session."""
        return f"{self.keys.prefix}{OURS}mcp-request:{_digest(f'{session_id} {request_id!r}')}"

    def mcp_answers(self, call_id: str, number: int) -> str:
        """A hash: the answers to a task's question so far, by the requests' keys. Expires an hour after the last."""
        return f"{self.keys.prefix}{OURS}mcp-answers:{call_id}:{number}"

    def mcp_question(self, session_id: str, number: str) -> str:
        """A list: an older MCP client's answer to a question, until the asking process takes it.

        Expires a minute later.
        """
        return f"{self.keys.prefix}{OURS}mcp-question:{_digest(f'{session_id} {number}')}"

    def mcp_watched(self, module: str) -> str:
        """The addresses of a module's resources that clients watch, by until when (ms). Expires when no gateway says so any more."""
        return f"{self.keys.prefix}{OURS}mcp-watched:{module}"

    @property
    def mcp_changes(self) -> str:
        """A stream: what has changed in modules' MCP servers, about 5,000 entries, for gateways to read."""
        return f"{self.keys.prefix}{OURS}mcp-changes"

    def mcp_session_watches(self, session_id: str) -> str:
        """A set: the addresses of resources that an older MCP client's session watches. Expires with the session."""
        return f"{self.keys.prefix}{OURS}mcp-session-watches:{_digest(session_id)}"

    def mcp_session_stream(self, session_id: str) -> str:
        """The session's current stream of changes: a stream opened before it sends no more.

        Expires with the session.
        """
        return f"{self.keys.prefix}{OURS}mcp-session-stream:{_digest(session_id)}"

    @property
    def mcp_state_key(self) -> str:
        """The key that seals the states carried by MCP clients, in a fleet that does not sign."""
        return f"{self.keys.prefix}{OURS}mcp-state-key"

    @property
    def _begin(self) -> str:
        return f"{self.keys.prefix}{OURS}gateway-"


def _digest(holder: str) -> str:
    """Return a short digest: users' names have any length and any characters, and are private."""
    return hashlib.sha256(holder.encode("utf-8", "surrogatepass")).hexdigest()[:32]
