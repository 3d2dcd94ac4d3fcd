"""What a model is offered, and what it may use."""

from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet.formats import call_from_openai, from_result, to_call

USER = Caller(user_id="ada", permission="user", allowed_modules="*")
ADMIN = Caller(permission="admin")


async def test_a_caller_sees_what_it_may_use(fleet: ToolFleet) -> None:
    """A tool that needs more than the caller has is not listed."""
    users = {tool.name for tool in await fleet.tools(USER)}
    admins = {tool.name for tool in await fleet.tools(Caller(permission="admin", allowed_modules="*"))}

    assert admins - users == {"owls.admin_only"}


async def test_what_is_not_listed_cannot_be_called(fleet: ToolFleet) -> None:
    """A model that calls a tool which it was never offered is refused; nothing reaches the module."""
    result = await fleet.call(ToolCall(tool_name="owls.admin_only"), USER)

    assert result.error_code == "permission_denied"
    assert result.error == "Tool 'owls.admin_only' needs 'admin'; caller is 'user'."
    assert result.effect_state == "none"


async def test_tools_go_to_a_model_and_its_answer_comes_back_as_a_call(fleet: ToolFleet) -> None:
    """Names are changed to what providers accept, and back."""
    tools = await fleet.tools(USER)
    offered = fleet.tools_to_openai_format(tools)
    name = next(tool["function"]["name"] for tool in offered if tool["function"]["name"].startswith("owls__echo"))
    answer = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": '{"text": "hu"}'}}
    result = await fleet.call(call_from_openai(answer, tools), USER)

    assert result.tool_name == "owls.echo"
    assert result.result == {"text": "hu"}


async def test_a_model_is_answered_in_the_names_that_it_knows(fleet: ToolFleet) -> None:
    """A tool that does not exist, and arguments that a tool does not have, are named as its provider names them."""
    tools = await fleet.tools(USER)
    wrong = {"type": "tool_use", "id": "t1", "name": "owls__echoe", "input": {}}
    result = await fleet.call(to_call(wrong, "anthropic", tools), USER)

    assert (result.error or "").startswith("No tool owls__echoe; did you mean owls__echo")
    assert from_result(result, "anthropic", "t1")["content"].startswith(result.error)

    failing = {"type": "tool_use", "id": "t2", "name": "owls__admin_only", "input": {}}
    handle = await fleet.submit(to_call(failing, "anthropic", await fleet.tools(ADMIN)), USER)
    assert (await handle.result()).error == "Tool 'owls__admin_only' needs 'admin'; caller is 'user'."


async def test_modules_are_asked_again_on_demand(fleet: ToolFleet) -> None:
    """`refresh` asks every module now, and says what came of it."""
    statuses = await fleet.modules.refresh()

    assert statuses["owls"].ok
    assert statuses["owls"].tools > 5
