"""Describes the queries that several lists take."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.dead_letters.entry import DeadKind
from toolfleet_tasks.dead_letters.kept_wakes import WaitingKind
from toolfleet_tasks.dead_letters.waiting_search import WantedWakes


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


class ChosenWakeups(BaseModel):
    """Which wake-ups of those that wait."""

    model_config = ConfigDict(extra="forbid")

    kind: WaitingKind | None = Field(None, description="Only those of this kind.")
    about: str = Field("", max_length=256, description="Only those with this in their id or subject, in any case.")
    error: str = Field("", max_length=256, description="Only those with this in their last error, in any case.")
    min_age_seconds: int = Field(0, ge=0, le=10**9, description="Only those that have waited for so long.")
    cursor: str | None = Field(None, max_length=2_048, description="The `next` of the page, or the step, before.")

    @property
    def wanted(self) -> WantedWakes:
        """As the search takes it."""
        until = fleet_clock.now() - self.min_age_seconds if self.min_age_seconds else math.inf
        return WantedWakes(self.kind, self.about, self.error, until)


class WakeupStepQuery(ChosenWakeups):
    """Which wake-ups are handled, and how many at once: whoever wants all goes on with the `next` of each answer."""

    limit: int = Field(1_000, ge=1, le=1_000, description="How many one step handles at most.")


class WakeupQuery(ChosenWakeups):
    """Which wake-ups are listed. Neither a cursor, words nor an age go with `offset` or `conversation_id`."""

    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")
    conversation_id: str | None = Field(
        None,
        max_length=256,
        description="Only this conversation's: of the `limit` that are tried next, and of those that its readers have not confirmed.",
    )

    @property
    def is_search(self) -> bool:
        """Whether words, a kind or an age choose them, or a page before."""
        return bool(self.kind or self.about or self.error or self.min_age_seconds or self.cursor)


class DeadQuery(PageQuery):
    """Which dead letters."""

    kind: DeadKind | None = Field(None, description="Only letters of this kind.")
    about: str = Field("", max_length=256, description="Only those with this in their id or subject, in any case.")
    error: str = Field("", max_length=256, description="Only those with this in their error, in any case.")
    min_age_seconds: int = Field(0, ge=0, le=10**9, description="Only those that died so long ago.")
    cursor: str | None = Field(
        None, max_length=2_048, description="The `next` of the page before. Neither it nor words go with `offset`."
    )
