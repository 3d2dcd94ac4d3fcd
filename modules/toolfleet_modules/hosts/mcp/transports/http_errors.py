"""Names how a request over HTTP can fail, in the form of the protocol's errors, and says which of them did nothing."""

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST

NOT_SENT = -31901
"""The server could not be reached."""
TURNED_AWAY = -31902
"""The server takes no more now. The error's data has `retry_after_seconds`."""
REFUSED = -31903
"""The server refuses such requests: for its credentials, its size, or its form."""
SESSION_LOST = -31904
"""The server knows the session no more."""
BROKEN = -31905
"""The connection ended before the answer did, or the answer is none. What the server did, nobody knows."""
UNAUTHORIZED = -31906
"""There is no token for it, and there will be none until somebody does something."""

_UNDONE = frozenset({NOT_SENT, TURNED_AWAY, REFUSED, SESSION_LOST, UNAUTHORIZED})


def did_nothing(error: MCPError) -> bool:
    """Whether the server has surely not begun."""
    return error.code in _UNDONE or is_session_lost(error)


def is_session_lost(error: MCPError) -> bool:
    """Whether another session is needed."""
    return error.code == SESSION_LOST or (error.code == INVALID_REQUEST and error.message == "Session terminated")
