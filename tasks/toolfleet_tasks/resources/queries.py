"""Describes the queries for a part of a list, which several resources take."""

import math

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.errors import InvalidQuestion
from toolfleet_registry.system import fleet_clock


class PageQuery(BaseModel):
    """A query for a part of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")


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


def no_cursor() -> InvalidQuestion:
    """Return the error of an invalid cursor."""
    return InvalidQuestion("The cursor is none: send the `next` of an answer as it is.")
