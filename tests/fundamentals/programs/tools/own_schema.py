"""Offers a tool whose schema is known already, as in a bridge to another system."""

import asyncio
from typing import Any

from toolfleet.sdk import Module

module = Module("bridge", description="Passes calls on.")
SCHEMA = {"type": "object", "properties": {"sort-by": {"enum": ["age", "name"]}}, "required": ["sort-by"]}


async def forward(**arguments: Any) -> dict[str, Any]:
    """List the owls of another system."""
    return {"asked": arguments}


module.add(forward, name="list_owls", effect="read", input_schema=SCHEMA)


async def main() -> None:
    async with module.client() as client:
        print((await client.call("list_owls", **{"sort-by": "age"})).result)
        print((await client.call("list_owls", **{"sort-by": "size"})).error)


asyncio.run(main())

# It prints:
# {'asked': {'sort-by': 'age'}}
# Invalid arguments for bridge.list_owls: arguments.sort-by must be one of "age", "name".
