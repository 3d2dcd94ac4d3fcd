"""Names what admission control has against a call."""

from dataclasses import dataclass
from typing import Literal

from toolfleet_registry.contracts import ToolResult


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not published.

    `joined` and `conflict`: its idempotency key stands for the call `call_id`, which does the same or something else.
    `open`: its module's breaker is, for `seconds`, and `why`. `backlog`: `count` calls wait for the module, `bytes`: calls of `count` bytes do;
    `caller_limit`: its caller may have `count` calls under way, `stored`: has results of `count` bytes that it has not fetched; `crowd`:
    `count` calls wait in its agent; `draining`: an operator has its queue take no new calls. `limited`: it has reached a limit, as `result` says. `unserved`: nobody has consumed its queue for
    `seconds`.
    """

    kind: Literal[
        "joined",
        "conflict",
        "open",
        "backlog",
        "bytes",
        "share",
        "stored",
        "crowd",
        "limited",
        "unserved",
        "draining",
        "ended",
    ]
    call_id: str = ""
    seconds: float = 0
    count: int = 0
    why: str = ""
    result: ToolResult | None = None
