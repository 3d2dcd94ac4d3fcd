"""A conversation's fields reach the modules that need them, and no model can forge them."""

from typing import Any

import pytest

from toolfleet_registry.contracts import Conversation
from toolfleet_tasks.conversation import with_conversation

HERE = Conversation(conversation_id="c1", platform="chat", platform_channel_id="7")
FORGED = {"platform": "evil", "platform_thread_id": "9", "conversation_id": "other", "text": "hi"}


@pytest.mark.parametrize(
    ("tool", "conversation", "expected"),
    [
        # An ordinary module is told nothing, and its arguments are its own.
        ("research.search", HERE, FORGED),
        # A context module gets the platform; a field that the conversation does not have is not the model's either.
        (
            "location.send",
            HERE,
            {"conversation_id": "other", "text": "hi", "platform": "chat", "platform_channel_id": "7"},
        ),
        # The scheduler's jobs wake a conversation, so that one tool gets its id as well.
        (
            "scheduler.add_job",
            HERE,
            {"text": "hi", "platform": "chat", "platform_channel_id": "7", "conversation_id": "c1"},
        ),
        ("scheduler.list_jobs", None, {"conversation_id": "other", "text": "hi"}),
        # Outside of a conversation there is none to be woken.
        ("scheduler.add_job", None, {"text": "hi"}),
    ],
)
def test_fields_are_the_cores_not_the_models(
    tool: str, conversation: Conversation | None, expected: dict[str, Any]
) -> None:
    """Platform fields and the conversation's id come from the core alone."""
    assert with_conversation(FORGED, tool, conversation, frozenset({"scheduler", "location"})) == expected
