"""Published calls for tests of what runs them."""

import time
from typing import Any

from toolfleet_registry.contracts import Caller, PublishedCall, SealedCall
from toolfleet_tasks.messages.signing import Seal

_SEAL = Seal("a secret of more than thirty-two characters")


def published(tool_name: str = "research.search_docs", **fields: Any) -> PublishedCall:
    """A call with a minute to live; `fields` replace its own."""
    now = time.time()
    defaults: dict[str, Any] = {
        "call_id": "call-1",
        "tool_name": tool_name,
        "arguments": {"query": "owls"},
        "user_id": None,
        "caller": Caller(permission="owner", allowed_modules="*"),
        "effect": None,
        "limit_seconds": 30,
        "published_at": now,
        "deadline_at": now + 60,
    }
    return PublishedCall(**{**defaults, **fields})


def sealed_apart(call: PublishedCall) -> SealedCall:
    """The call as a worker has it that has received it with its arguments apart: they are not parsed yet."""
    opened = _SEAL.open(_SEAL.seal_apart(call), task_id=call.call_id)
    assert isinstance(opened, SealedCall)
    return opened
