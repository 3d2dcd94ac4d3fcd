"""What the loop wants of a model, whoever provides it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolfleet import ToolCall, ToolDefinition


class ModelAway(Exception):
    """The model does not answer, or not in its form. The turn may be tried again later: nothing was done for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says: its message as it goes into the history, and the tool calls in it, as calls of ours."""

    body: dict[str, Any]
    calls: tuple[ToolCall, ...] = ()

    @property
    def text(self) -> str:
        """What it says in words; often nothing beside tool calls."""
        return str(self.body.get("content") or "")


class Model(Protocol):
    """Answers a conversation. Raises `ModelAway`."""

    async def answer(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolDefinition]) -> Answer:
        """The next message after these, which are in the form of OpenAI's chats; it may call these tools."""
        ...
