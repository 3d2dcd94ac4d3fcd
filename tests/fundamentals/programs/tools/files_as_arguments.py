"""Takes a file as an argument: the model sends base64, and the function gets checked bytes."""

import asyncio
import base64
from typing import Annotated

from toolfleet.sdk import Media, Module

module = Module("pictures", description="Looks at pictures.")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(12)


@module.tool(effect="read")
async def measure(picture: Annotated[bytes, Media("image/png", most_bytes=500_000)]) -> int:
    """Say how many bytes a PNG has."""
    return len(picture)


async def main() -> None:
    async with module.client() as client:
        print((await client.call("measure", picture=base64.b64encode(PNG).decode())).result)
        print((await client.call("measure", picture=base64.b64encode(b"GIF89a").decode())).error)


asyncio.run(main())

# It prints:
# 20
# Invalid arguments for pictures.measure: picture: This is image/gif; image/png is wanted.
