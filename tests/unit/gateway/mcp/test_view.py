"""What a client sees at an endpoint, and which tool it means by a name."""

import pytest

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import Caller, ToolDefinition

TOOLS = [
    ToolDefinition(name="shop.get_orders_id", former_names=["shop.get_orders_id-x9a110b7d"]),
    ToolDefinition(name="shop.a/b"),
]


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("shop__get_orders_id", "shop.get_orders_id"),
        ("shop__get_orders_id-x9a110b7d", "shop.get_orders_id"),
        (McpView(Identity(Caller())).shown("shop.a/b"), "shop.a/b"),
        ("shop__put_orders_id", None),
        ("shop.get_orders_id-x9a110b7d", "shop.get_orders_id-x9a110b7d"),
    ],
)
def test_a_client_may_use_a_former_name(shown: str, meant: str | None) -> None:
    """With a dot a name goes on as it is: calls are found by any name of their tools."""
    assert McpView(Identity(Caller())).meant(shown, TOOLS) == meant
