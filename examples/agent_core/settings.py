"""What the core is told from outside: `AGENT_…` variables. The fleet's own are `TOOLFLEET_…`, as everywhere."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from toolfleet_registry.contracts import Level

_CLONE = Path(__file__).resolve().parents[2]

Count = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class AgentSettings(BaseSettings):
    """The settings of the core, each with its reason."""

    model_config = SettingsConfigDict(
        env_prefix="AGENT_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    database_url: str = Field(default=f"sqlite:///{_CLONE / '.toolfleet' / 'agent.db'}", repr=False)
    """SQLAlchemy's URL of the conversations and of the wake-ups that were acted on: one transaction holds both."""
    model_url: str | None = None
    """An OpenAI-compatible server, up to and without `/chat/completions`. None: the scripted model."""
    model_name: str = "gpt-5-mini"
    model_key: SecretStr | None = None
    model_seconds: Seconds = 120
    """For one answer of the model."""
    instructions: str = (
        "You are a helpful assistant with tools. Long work goes on in the background: start it, make a job with "
        "scheduler.add_job that polls it, with on_complete resume_conversation, and tell the user; you are woken at its end."
    )
    permission: Level = "user"
    """What a user may do who is not in the table `users`."""
    permissions: dict[str, Level] = {}
    """User id -> permission, as JSON: what is written into the table `users` while that is empty."""
    token: SecretStr | None = None
    """What bots send as `Authorization: Bearer …`. None: anybody who reaches the port may speak for any user."""
    max_steps: Count = 20
    """Answers of the model in one turn; one that calls tools for ever is stopped."""
    max_calls: Count = 32
    """Tool calls of one answer, which run side by side; the model is told that the others were not made."""
    turn_seconds: Seconds = 600
    """For a whole turn."""
    patience_seconds: Seconds = 30
    """How long a user's message waits for a turn that is under way in its conversation."""
    history_messages: Count = 200
    """The latest messages of a conversation are what the model sees."""
    result_chars: Count = 20_000
    """Of a tool's result; the rest is cut, for the model reads it again with each of its answers."""
    max_upload_bytes: Count = 8 * 2**20
    """A request's body."""
