"""Functions about owls and trees that workers run themselves: `TOOLFLEET_LOCAL_TOOLS=owl_tools:tools`."""

import time

from toolfleet.tags import Context, local_tool


@local_tool(permission="guest", effect="read", timeout_seconds=5)
async def find_owls(wood: str, most: int = 10) -> list[str]:
    """Find owls in a wood.

    Args:
        wood: Its name.
        most: How many to name at most.
    """
    return [f"tawny owl of {wood}"][:most]


@local_tool(name="count_trees", effect="read")
def count(most: int, call: Context) -> int:
    """Count trees, one after the other."""
    trees = 0
    while trees < most and not call.cancelled:
        time.sleep(0.01)  # blocks its thread, and nothing else
        trees += 1
    return trees


tools = [find_owls, count]
