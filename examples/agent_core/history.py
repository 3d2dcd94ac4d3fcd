"""What was said in a conversation, in the form of OpenAI's chat messages, and what follows from where it stands."""

from dataclasses import dataclass
from typing import Any, Literal

from toolfleet import ToolCall

Source = Literal["user", "model", "tools", "wake", "notice"]
"""Who a message comes from. A wake-up is shown to the model like a user's message; a notice only to the user."""

_ANSWERED: frozenset[Source] = frozenset({"user", "wake"})


@dataclass(frozen=True, slots=True)
class Said:
    """A message. `body` is the model's form of it; `calls` are a model's tool calls, each with its idempotency key.

    `source_id` names it among those of its source (a bot's message id, a wake-up's id): it is taken in only once.
    """

    source: Source
    body: dict[str, Any]
    calls: tuple[ToolCall, ...] = ()
    source_id: str | None = None
    at: float = 0.0

    @property
    def text(self) -> str:
        """Its words; often none beside tool calls."""
        return str(self.body.get("content") or "")


@dataclass(frozen=True, slots=True)
class History:
    """A conversation's messages, the first first."""

    said: tuple[Said, ...] = ()

    def answer_to(self, asked: Said) -> str | None:
        """The model's words after that message and before the next one that wants an answer; `None` if there are none."""
        after = iter(self.said)
        if not any(_is_same(message, asked) for message in after):
            return None
        for message in after:
            if _is_text(message):
                return message.text
            if message.source in _ANSWERED:
                break
        return None

    def has(self, asked: Said) -> bool:
        """Whether that message was taken in."""
        return any(_is_same(message, asked) for message in self.said)

    def waiting(self) -> Said | None:
        """The latest message that wants an answer, if it has none: its turn was cut off."""
        for message in reversed(self.said):
            if _is_text(message):
                return None
            if message.source in _ANSWERED:
                return message
        return None

    def unanswered(self) -> list[tuple[str, ToolCall, float]]:
        """The last tool calls that have no results yet: the provider's id, the call, and when it was asked for.

        There are some after a crash: the core had written down what the model wants, and not what came of it.
        """
        last = self.said[-1] if self.said else None
        if last is None or not last.calls:
            return []
        ids = [str(call["id"]) for call in last.body["tool_calls"]]
        return [(call_id, call, last.at) for call_id, call in zip(ids, last.calls, strict=True)]

    def shown(self, limit: int) -> list[dict[str, Any]]:
        """At most the `limit` latest messages as the model gets them, from where a user or a wake-up speaks."""
        spoken = [position for position, message in enumerate(self.said) if message.body["role"] == "user"]
        latest = [position for position in spoken if position >= len(self.said) - limit]
        start = latest[0] if latest else spoken[-1] if spoken else 0
        return [message.body for message in self.said[start:]]


def _is_same(message: Said, other: Said) -> bool:
    return message.source_id is not None and (message.source, message.source_id) == (other.source, other.source_id)


def _is_text(message: Said) -> bool:
    return message.source == "model" and not message.calls
