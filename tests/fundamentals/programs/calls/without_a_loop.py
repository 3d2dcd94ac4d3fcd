"""Calls a tool from a program that has no event loop: the same methods, without `await`."""

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")

with ToolFleet.sync() as fleet:
    result = fleet.call(ToolCall(tool_name="owls.count", arguments={"wood": "Arden"}), ada)
    print(result.result)

# It prints:
# {'wood': 'Arden', 'owls': 3}
