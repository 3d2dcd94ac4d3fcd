"""Describes what an agent knows of the conversation around a call: its tools are told, and no model can write it."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, field_validator

from toolfleet_registry.contracts.message import Message, Since

if TYPE_CHECKING:
    from toolfleet_registry.contracts.call_context import Context

M = TypeVar("M", bound=Message)


class Conversation(Message):
    """Where a call comes from; given to the modules that must find the way back, over what the model wrote."""

    conversation_id: str | None = None
    """The conversation that a job's end wakes."""
    platform: str | None = None
    """What the conversation runs on, such as `telegram`."""
    platform_channel_id: str | None = None
    """The channel there."""
    platform_thread_id: str | None = None
    """The thread in that channel."""
    run_id: Annotated[str | None, Since(3)] = None
    """The turn of the agent that a call is part of, at most 256 characters: what a profile's `run_limit` counts by. Never told to modules."""


CONVERSATION_FIELDS = frozenset(Conversation.model_fields) - {"run_id"}
"""What modules may be told of a conversation."""


class ToolContext(Message):
    """The context of a tag's tool. Fields can be positional: `ToolContext("owls", question, "@ada", 7)`."""

    raw_arg: str
    """The text after the tag."""
    user_message: str = ""
    """What the user has written."""
    user: str = ""
    """Whoever asks, as the call's caller has it."""
    chat_id: int = 0
    """The chat, by its number on its platform."""
    kb_context: str | None = None
    """What the agent's knowledge base has said of it."""
    confidence: float | None = Field(default=None, allow_inf_nan=False)
    """The model's own rating."""
    groups: dict[str, str] = Field(default={})
    """The text of each of the tag's groups by name, "" for one that is not there."""

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0913, PLR0917 - its fields, in their order
            self,
            raw_arg: str,
            user_message: str = ...,
            user: str = ...,
            chat_id: int = ...,
            kb_context: str | None = ...,
            confidence: float | None = ...,
            groups: dict[str, str] = ...,
        ) -> None: ...

    else:

        def __init__(self, /, *given: Any, **fields: Any) -> None:
            super().__init__(**by_name(type(self), given, fields))

    @property
    def cancelled(self) -> bool:
        """Whether no client waits for the running call any more.

        An async function is cancelled then; a plain one, in its thread, should check this.
        """
        call = _running.get()
        return call is not None and call.cancelled

    @property
    def seconds_left(self) -> float | None:
        """The seconds until no client waits for the running call, at least 0; `None` outside of a call."""
        call = _running.get()
        return None if call is None else call.seconds_left

    @field_validator("raw_arg", "user_message", "user", "kb_context")
    @classmethod
    def _replace_half_characters(cls, text: str | None) -> str | None:
        return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


def run_for(call: "Context") -> None:
    """Have what runs in this task, in those that it makes and in threads that get its context, run for `call`."""
    _running.set(call)


_running: "ContextVar[Context | None]" = ContextVar("toolfleet_running_call", default=None)


def by_name(kind: type[M], given: tuple[Any, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message, of which some were given in their order. Raises `TypeError`, as a call does."""
    names = list(kind.model_fields)
    if len(given) > len(names):
        raise TypeError(f"{kind.__name__}() takes {len(names)} fields, and {len(given)} were given")
    if twice := fields.keys() & set(names[: len(given)]):
        raise TypeError(f"{kind.__name__}() got {min(twice)!r} twice")
    return dict(zip(names, given, strict=False)) | fields
