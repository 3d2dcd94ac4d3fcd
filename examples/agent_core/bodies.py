"""What the core is sent and what it answers, beside wake-ups."""

from base64 import b64decode
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from agent_core.history import Said
from toolfleet import Conversation

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Upload(BaseModel):
    """A file that a user sends along; its content in base64."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    content_base64: str

    @field_validator("content_base64")
    @classmethod
    def _check_content(cls, text: str) -> str:
        b64decode(text, validate=True)
        return text

    @property
    def content(self) -> bytes:
        """The file itself."""
        return b64decode(self.content_base64)


class MessageIn(BaseModel):
    """What a user says, as a bot hands it on. With a `message_id` it may be sent again: it is answered once."""

    model_config = ConfigDict(extra="forbid")

    user_id: Name
    text: Annotated[str, StringConstraints(max_length=100_000)]
    message_id: Name | None = None
    persona: Name | None = None
    """Whose modules the agent has in this conversation from now on. None: as before, which at first is nobody's."""
    platform: Name | None = None
    platform_channel_id: Name | None = None
    platform_thread_id: Name | None = None
    files: list[Upload] = Field(default=[], max_length=20)

    @property
    def place(self) -> Conversation:
        """Where it was said."""
        return Conversation(
            platform=self.platform,
            platform_channel_id=self.platform_channel_id,
            platform_thread_id=self.platform_thread_id,
        )


class Reply(BaseModel):
    """What the agent says to it."""

    conversation_id: str
    text: str


class MessageOut(BaseModel):
    """A message of a conversation: who it is from, the words, and the tools that the model called in it."""

    source: str
    text: str
    tools: list[str]
    at: float

    @classmethod
    def of(cls, said: Said) -> "MessageOut":
        """As others may see it."""
        content: Any = said.body.get("content")
        text = content if isinstance(content, str) else ""  # nothing that a model said makes a conversation unreadable
        return cls(source=said.source, text=text, tools=[call.tool_name for call in said.calls], at=said.at)


class ConversationOut(BaseModel):
    """A conversation with all its messages."""

    conversation_id: str
    user_id: str
    messages: list[MessageOut]
