"""What a client sees at an endpoint: apps of several modules in one list, names, and failures that are errors of the protocol."""

from typing import Any, cast

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.mcp.module_methods import ModuleMethods
from toolfleet_gateway.mcp.results import passed_failure
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.functions.passed_methods import PassedError

APP = {"uri": "ui://barn", "name": "barn"}
READ = {"uri": "data://barn", "text": "hu"}


class Modules:
    """A fleet of the module `barn`, which is right, and `odd`, which answers as a test says; both have an app."""

    def __init__(self, odd: object) -> None:
        self.odd, self.asked = odd, list[str]()

    async def tools(self, _: Caller) -> list[ToolDefinition]:
        """Offer a tool of each."""
        return [
            ToolDefinition(name=f"{name}.show", meta={"ui/resourceUri": f"ui://{name}"}) for name in ("barn", "odd")
        ]

    async def call(self, call: ToolCall, _: Caller, **__: object) -> ToolResult:
        """Answer a call of a passing tool."""
        self.asked.append(call.tool_name)
        right = {"contents": [READ]} if call.tool_name.endswith("read") else {"resources": [APP]}
        answer = {"result": right} if call.tool_name.startswith("barn.") else self.odd
        return ToolResult(tool_name=call.tool_name, success=True, result=answer)


def odd_of(*listed: object, **more: object) -> dict[str, Any]:
    return {"result": {"resources": [*listed], **more}}


ODD = {"uri": "ui://odd", "name": "odd"}
ANSWERS: list[tuple[object, list[dict[str, Any]]]] = [
    (5, []),
    ({"result": 5}, []),
    ({"error": 5}, []),
    ({"error": {}}, []),
    ({"error": {"code": "x", "message": "no"}}, []),
    ({"error": {"code": -32000, "message": "no"}}, []),
    ({"result": {"resources": 5}}, []),
    (odd_of(5, {"uri": "ui://odd"}, {"name": "odd"}, {**ODD, "name": 5}, {**ODD, "_meta": 5}, ODD), [ODD]),
    (odd_of({**ODD, "uri": "data://odd"}, ODD), [ODD]),
    (odd_of(ODD, nextCursor="again"), [ODD]),
    (odd_of(ODD, nextCursor=None), [ODD]),
]


@pytest.mark.parametrize(("answer", "shown"), ANSWERS)
async def test_a_module_that_lists_wrongly_costs_the_others_nothing(
    answer: object, shown: list[dict[str, Any]]
) -> None:
    """What is a resource in its list is shown, once, and a page without a new one is its last."""
    fleet = Modules(answer)
    listed = await methods(fleet)._of_apps(VIEW, "resources/list", {})

    assert listed["resources"] == [APP, *shown]
    assert len(fleet.asked) <= 3


@pytest.mark.parametrize(
    "answer",
    [5, {"result": 5}, {"result": {}}, {"result": {"contents": []}}, {"result": {"contents": [5]}}, {"error": 5}],
)
async def test_what_a_module_does_not_have_is_read_from_the_one_that_has_it(answer: object) -> None:
    """Whatever it answers instead of a resource; where none has it there is an error."""
    read = await methods(Modules(answer))._of_apps(VIEW, "resources/read", {"uri": "data://barn"})

    assert read["contents"] == [READ]
    with pytest.raises(MCPError, match="barn, odd have it: read it at /mcp/barn or /mcp/odd") as refused:
        await methods(Modules({"result": {"contents": [READ]}}))._of_apps(VIEW, "resources/read", {"uri": "data://x"})
    assert refused.value.code == types.INVALID_PARAMS


VIEW = McpView(Identity(Caller()))


def methods(fleet: Modules) -> ModuleMethods:
    """What answers for these modules."""
    return ModuleMethods(cast("Any", fleet), lambda _: VIEW)


def failed(result: object) -> ToolResult:
    said = ToolResult.failed("nest.hatch", "module_error", "it failed", effect_state="unknown")
    return said.model_copy(update={"result": result})


def test_a_servers_error_is_told_with_what_is_known_of_the_effect() -> None:
    """Its code, message and data are the server's; beside the data stands what programs may go by."""
    needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
    error = passed_failure(failed(PassedError(-32021, "it needs sampling", needed).worded()))

    assert error is not None
    assert (error.code, error.message) == (-32021, "it needs sampling")
    known = error.data.pop("toolfleet/error")
    assert (known["error_code"], known["effect_state"], known["retryable"]) == ("module_error", "unknown", False)
    assert error.data == needed


def test_other_ends_are_no_errors_of_the_protocol() -> None:
    """Neither a tool's own failure, nor a success that looks like an error."""
    worded = PassedError(-32603, "no").worded()

    assert passed_failure(failed(None)) is None
    assert passed_failure(ToolResult.ok("nest.hatch", worded)) is None


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
