"""Opens what a module needs before its first call, and closes it after the last."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet.sdk import Module

module = Module("sightings", description="Remembers owls.")
database = sqlite3.connect(":memory:", check_same_thread=False)


@module.lifespan
@asynccontextmanager
async def tables() -> AsyncGenerator[None]:
    database.execute("CREATE TABLE owls (name TEXT)")
    yield
    database.close()
    print("closed")


@module.tool(effect="once")
async def note(name: str) -> int:
    """Write an owl down, and say how many there are."""
    database.execute("INSERT INTO owls VALUES (?)", [name])
    return int(database.execute("SELECT count(*) FROM owls").fetchone()[0])


async def main() -> None:
    async with module.client() as client:
        print((await client.call("note", name="Hedwig")).result)


asyncio.run(main())

# It prints:
# 1
# closed
