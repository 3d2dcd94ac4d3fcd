"""rq's task."""

from typing import Any

from benchmarks.posting import BlockingPoster

post = BlockingPoster()


def execute(tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return post(tool_name, arguments, user_id)
