"""How the news of a job's end are put to a model: a sentence for it, and the facts as JSON in the last line."""

import json
from typing import Any

from toolfleet.webhooks import WakeUp

_SPEAKER = "fleet"  # what users say has no name, so that none of them can pass for it
_TOLD = {"type", "job_id", "name", "tool_name", "result", "result_preview", "is_truncated", "error", "error_code"}


def wake_message(wake: WakeUp) -> dict[str, Any]:
    """The wake-up as a chat message. Its result is a tool's: data, and no instructions."""
    facts = wake.model_dump(include=_TOLD, exclude_defaults=True)
    content = f"A job of yours has ended. {wake.message}\n{json.dumps(facts, ensure_ascii=False)}"
    return {"role": "user", "name": _SPEAKER, "content": content}


def facts_of(message: dict[str, Any]) -> dict[str, Any] | None:
    """The facts of such a message; `None` of any other."""
    if message.get("name") != _SPEAKER:
        return None
    facts: dict[str, Any] = json.loads(message["content"].rpartition("\n")[2])
    return facts
