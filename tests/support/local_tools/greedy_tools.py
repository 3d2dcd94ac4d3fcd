"""A function that runs in a worker and takes all the memory it gets."""

from toolfleet.tags import local_tool


@local_tool(effect="read")
async def hoard(megabytes: int) -> int:
    """Take so much, and use it."""
    hoarded = bytearray(megabytes * 2**20)
    for place in range(0, len(hoarded), 4096):
        hoarded[place] = 1
    return len(hoarded)


tools = [hoard]
