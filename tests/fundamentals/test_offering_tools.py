"""What a model is offered, and what it may use."""

from toolfleet import Caller, ToolFleet
from toolfleet.formats import from_result, to_call

USER = Caller(user_id="ada", permission="user", allowed_modules="*")
ADMIN = Caller(permission="admin")


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
