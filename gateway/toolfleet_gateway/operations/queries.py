"""Describes the queries that several lists take."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_tasks.dead_letters.entry import DeadKind


class PageQuery(BaseModel):
    """Which part of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")


class KindQuery(BaseModel):
    """Which of the letters that have one id."""

    model_config = ConfigDict(extra="forbid")

    kind: DeadKind | None = Field(None, description="What has died: a call, a wake-up, or an event for a webhook.")


class EventKindQuery(BaseModel):
    """Which news are meant together: calls are replayed one by one."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["wakeup", "webhook"] = Field(description="Wake-ups, or events for webhooks.")


class WakeupQuery(PageQuery):
    """Which wake-ups."""

    conversation_id: str | None = Field(
        None,
        max_length=256,
        description="Only this conversation's: of the `limit` that are tried next, and of those that its readers have not confirmed.",
    )


class DeadQuery(PageQuery):
    """Which dead letters."""

    kind: DeadKind | None = Field(None, description="Only letters of this kind.")
    about: str = Field("", max_length=256, description="Only those with this in their id or subject, in any case.")
    error: str = Field("", max_length=256, description="Only those with this in their error, in any case.")
    min_age_seconds: int = Field(0, ge=0, le=10**9, description="Only those that died so long ago.")
    cursor: str | None = Field(
        None, max_length=2_048, description="The `next` of the page before. Neither it nor words go with `offset`."
    )
