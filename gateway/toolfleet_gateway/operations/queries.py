"""Describes the queries that several lists take."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.dead_letters.entry import KINDS, DeadKind
from toolfleet_tasks.dead_letters.kept_wakes import WaitingKind
from toolfleet_tasks.dead_letters.letter_search import WantedLetters
from toolfleet_tasks.dead_letters.waiting_search import WantedWakes


class PageQuery(BaseModel):
    """A query for a part of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")


class KindQuery(BaseModel):
    """A query for dead letters of a kind, of all or of those that have one id."""

    model_config = ConfigDict(extra="forbid")

    kind: DeadKind | None = Field(None, description="What has died: a call, a wake-up, or an event for a webhook.")

    @property
    def kinds(self) -> tuple[DeadKind, ...]:
        """Their kinds."""
        return KINDS if self.kind is None else (self.kind,)


class EventKindQuery(BaseModel):
    """A query for a kind of events, which are handled together: calls are replayed one by one."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["wakeup", "webhook"] = Field(description="Wake-ups, or events for webhooks.")


class SearchQuery(BaseModel):
    """A query for waiting or dead entries with certain words, and of a certain age; and for a part of them."""

    model_config = ConfigDict(extra="forbid")

    about: str = Field("", max_length=256, description="Only those with this in their id or subject, in any case.")
    error: str = Field("", max_length=256, description="Only those with this in their last error, in any case.")
    min_age_seconds: int = Field(
        0, ge=0, le=10**9, description="Only those that have waited, or are dead, for so long."
    )
    cursor: str | None = Field(None, max_length=2_048, description="The `next` of the page, or the step, before.")

    @property
    def until(self) -> float:
        """The latest start of the wait, or time of death, of that age (seconds since the epoch)."""
        return fleet_clock.now() - self.min_age_seconds if self.min_age_seconds else math.inf

    @property
    def is_search(self) -> bool:
        """Whether words or an age choose them, or a page before."""
        return bool(self.about or self.error or self.min_age_seconds or self.cursor)


class ChosenWakeups(SearchQuery):
    """A filter of waiting wake-ups."""

    kind: WaitingKind | None = Field(None, description="Only those of this kind.")

    @property
    def wanted(self) -> WantedWakes:
        """As the search takes it."""
        return WantedWakes(self.kind, self.about, self.error, self.until)


class WakeupStepQuery(ChosenWakeups):
    """A query for a step over wake-ups, and how many it handles: the `next` of each answer continues with the rest."""

    limit: int = Field(1_000, ge=1, le=1_000, description="How many one step handles at most.")


class WakeupQuery(PageQuery, ChosenWakeups):
    """A query for wake-ups. Neither a cursor, words nor an age go with `offset` or `conversation_id`."""

    conversation_id: str | None = Field(
        None,
        max_length=256,
        description="Only this conversation's: of the `limit` that are tried next, and of those that its readers have not confirmed.",
    )

    @property
    def is_search(self) -> bool:
        """Whether words, a kind or an age choose them, or a page before."""
        return super().is_search or self.kind is not None


class DeadQuery(KindQuery, PageQuery, SearchQuery):
    """A query for dead letters. Neither a cursor, words nor an age go with `offset`."""

    @property
    def wanted(self) -> WantedLetters:
        """As the search takes it."""
        return WantedLetters(self.kinds, self.about, self.error, self.until)
