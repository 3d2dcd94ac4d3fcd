"""An agent calls tools."""

from toolfleet import Caller, Settings, ToolCall, ToolFleet


async def test_a_call_comes_back_with_its_result(fleet: ToolFleet) -> None:
    """You say which tool, with which arguments, and who asks; you get what the module answered."""
    caller = Caller(user_id="ada", permission="user", allowed_modules=frozenset({"owls"}))
    result = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"text": "hu"}), caller)

    assert result.success
    assert result.result == {"text": "hu"}


async def test_calls_of_one_answer_run_side_by_side(fleet: ToolFleet, owner: Caller) -> None:
    """A model that asks for several tools at once gets the results in its order."""
    calls = [ToolCall(tool_name="owls.echo", arguments={"number": number}) for number in range(3)]
    results = await fleet.call_many(calls, owner)

    assert [result.result["number"] for result in results] == [0, 1, 2]


async def test_a_failed_call_is_a_result_too(fleet: ToolFleet, owner: Caller) -> None:
    """Nothing that happens to a call raises: the model reads the error and adapts."""
    result = await fleet.call(ToolCall(tool_name="owls.fail"), owner)

    assert not result.success
    assert result.error_code == "module_error"
    assert result.error == "I cannot."


async def test_a_call_ends_by_its_deadline(fleet: ToolFleet, owner: Caller) -> None:
    """`timeout` bounds waiting and running together, and says so honestly: the tool may have done its work."""
    nap = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 30})
    result = await fleet.call(nap, owner, timeout=3)

    assert result.error_code == "timed_out"
    assert result.effect_state == "unknown"


def test_programs_without_an_event_loop_call_tools_too(settings: Settings, owner: Caller) -> None:
    """`ToolFleet.sync()` has the same methods, without `await`."""
    with ToolFleet.sync(settings=settings) as fleet:
        assert fleet.call(ToolCall(tool_name="owls.echo"), owner).success
