"""The one piece of work that every system does, known to workers and producers of all: a tool call of some 300 bytes."""

import os
from dataclasses import dataclass
from typing import Any

REDIS_URL = os.environ.get("BENCH_REDIS_URL", "")
MODULE_URL = os.environ.get("BENCH_MODULE_URL", "")
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "100"))

USER = "user-42"

INSTANT = "instant.echo"
"""The tool of a module that answers at once."""

WAIT_50_MS = "wait50.echo"
"""The tool of a module that answers after 50 ms: `wait<n>` waits n ms, any other name does not."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a caller wants done."""

    tool_name: str
    arguments: dict[str, Any]
    user_id: str = USER

    def body(self) -> dict[str, Any]:
        """What is posted to the module."""
        return {"tool_name": self.tool_name, "arguments": self.arguments, "user_id": self.user_id}


def make_call(number: int, tools: list[str], user_id: str = USER) -> Call:
    """The call of that number; the tools take turns."""
    arguments = {
        "title": f"note {number}",
        "text": "x" * 160,
        "tags": ["a", "b", "c"],
        "number": number,
        "nested": {"keys": [1, 2, 3]},
    }
    return Call(tools[number % len(tools)], arguments, user_id)


def path_of(tool_name: str) -> str:
    """Where the tool's module takes calls."""
    return f"/{tool_name.partition('.')[0]}/execute"


def check(result: dict[str, Any]) -> None:
    """Fail unless the call has succeeded and brought its arguments back."""
    if result["success"] is not True or "echo" not in result["result"]:
        raise RuntimeError(f"a call has failed: {result}")
