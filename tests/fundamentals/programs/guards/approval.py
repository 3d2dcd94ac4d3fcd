"""Has a person approve a call before it begins: the agent is told at once that it waits, and brings its result later."""

import asyncio

from toolfleet import Approver, Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user", agent="careful")
adopt = ToolCall(tool_name="owls.adopt", arguments={"owl": "Soren"}, idempotency_key="turn 7, call 1")
bob = Approver("command line", user_id="bob", permission="admin")


async def main() -> None:
    async with ToolFleet() as fleet:
        waits = await fleet.call(adopt, ada)
        print(waits.error_code, waits.effect_state)

        (approval,) = await fleet.approvals.list()
        print(approval.request.tool_name, approval.request.arguments, approval.approval_id == waits.audit.call_id)
        seen = approval.request.binding
        print((await fleet.approvals.approve(approval.approval_id, bob, seen=seen)).state)

        done = await fleet.call(adopt, ada)  # under its key this is the very call that was approved
        print(done.success, done.audit.call_id == approval.approval_id)


asyncio.run(main())

# It prints:
# approval_required none
# owls.adopt {'owl': 'Soren'} True
# approved
# True True
