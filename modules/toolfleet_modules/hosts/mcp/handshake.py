"""Makes the handshake with a server: on a version of the protocol, and who its client is."""

from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_registry.functions.passed_methods import APPS

TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a server may go on with a call by itself."""

CLIENT = types.Implementation(name="toolfleet", version="1")
"""Who asks."""
EXTENSIONS: dict[str, dict[str, Any]] = {TASKS: {}, APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}}
"""The extensions that the client understands. Clients of a gateway show apps; a server offers none to a client that does not say so."""


async def agree(session: ClientSession, *, is_legacy: bool) -> None:
    """Ask the server which versions it speaks, or shake hands as older ones do."""
    if not is_legacy:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValidationError):
            pass  # it knows no such question, or has no newer version
        else:
            return
    await session.initialize()


def meta_of(session: ClientSession) -> dict[str, Any]:
    """What goes with each request: newer versions of the protocol have no handshake that both sides remember."""
    if session.discover_result is None:
        return {}
    capabilities = types.ClientCapabilities(extensions=EXTENSIONS)
    return {
        types.PROTOCOL_VERSION_META_KEY: session.protocol_version,
        types.CLIENT_INFO_META_KEY: CLIENT.model_dump(by_alias=True, mode="json", exclude_none=True),
        types.CLIENT_CAPABILITIES_META_KEY: capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
    }
