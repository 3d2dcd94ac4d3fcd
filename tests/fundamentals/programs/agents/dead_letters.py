"""Looks at dead letters: calls that may have done something, and whose end nobody has seen."""

import asyncio

from toolfleet import Caller, DeadLetter, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        order = ToolCall(tool_name="owls.order_mice", arguments={"number": 3, "card": "4711"})
        result = await fleet.call(order, ada)
        print(result.error_code, "| effect:", result.effect_state)

        letter = await fleet.dead_letters.show(result.audit.call_id)
        if isinstance(letter, DeadLetter):  # `card` is sensitive: a replay must be given it
            print(letter.tool_name, letter.arguments)

        # A person has found out that the shop never had the order:
        again = await fleet.dead_letters.replay(result.audit.call_id, arguments={"card": "4711"})
        dropped = await fleet.dead_letters.drop(again.audit.call_id)  # it is a letter in the place of the first
        print(again.error_code, "| letters dropped:", len(dropped))


asyncio.run(main())

# It prints:
# timed_out | effect: unknown
# owls.order_mice {'number': 3, 'card': '[redacted]'}
# timed_out | letters dropped: 1
