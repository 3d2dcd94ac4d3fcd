"""Names the intention behind a framework's tool call, so that a repeat of it joins the first one."""

import hashlib
import json
from typing import Any


def call_key(run_id: str | None, call_id: str | None, tool_name: str, arguments: Any) -> str | None:
    """The idempotency key of one tool call: 64 hex digits. `None` where the framework has given it no id.

    The ids alone would not do: models repeat a call's id within one run, with other arguments. `run_id` tells runs apart
    whose model counts its calls anew; `None` where call ids are unique by themselves.
    """
    if not call_id:
        return None
    try:
        text = json.dumps([run_id, call_id, tool_name, arguments], sort_keys=True, separators=(",", ":"), default=str)
    except (RecursionError, TypeError, ValueError):  # arguments that no call can have, and that are refused
        text = json.dumps([run_id, call_id, tool_name])
    return hashlib.sha256(text.encode()).hexdigest()
