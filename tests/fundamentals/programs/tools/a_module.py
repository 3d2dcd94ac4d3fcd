"""Makes a module of functions, and calls it without sockets."""

import asyncio
from typing import Literal

from toolfleet.sdk import Module, ToolError

module = Module("larks", description="Knows larks.")


@module.tool(permission="guest", effect="read")
async def sing(season: Literal["spring", "summer", "winter"], times: int = 1) -> str:
    """Have a lark sing.

    Args:
        season: When it sings.
        times: How often.
    """
    if season == "winter":
        raise ToolError("Larks are away in winter.", effect_state="none")
    return " ".join(["tirili"] * times)


async def main() -> None:
    async with module.client() as client:
        print((await client.call("sing", season="spring", times=2)).result)
        print((await client.call("sing", season="winter")).error)


if __name__ == "__main__":
    asyncio.run(main())

app = module.app  # `toolfleet up --module larks` serves it, as larks/main.py

# It prints:
# tirili tirili
# Larks are away in winter.
