"""Asks what modules there are, and has them all asked anew."""

import asyncio

from toolfleet import ToolFleet


async def main() -> None:
    async with ToolFleet() as fleet:
        for name, status in sorted((await fleet.modules.refresh()).items()):
            print(name, status.ok, status.error)
        print(sorted(await fleet.modules.statuses()))  # what is known, without asking anybody


asyncio.run(main())

# It prints:
# local True None
# owls True None
# ['local', 'owls']
