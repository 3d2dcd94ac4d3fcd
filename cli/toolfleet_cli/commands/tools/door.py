"""Chooses where commands about tools ask: the registry, or a gateway."""

from typing import TypeAlias

from toolfleet_cli.direct.tools import RegisteredTools
from toolfleet_cli.remote.gateway import Gateway
from toolfleet_cli.remote.tool_changes import GatewayTools

Tools: TypeAlias = RegisteredTools | GatewayTools


def tools_of(gateway: Gateway | None, by: str | None = None) -> Tools:
    """The tools as the gateway knows them, or the registry; `by` is who the audit says has changed them."""
    return RegisteredTools(by) if gateway is None else GatewayTools(gateway)
