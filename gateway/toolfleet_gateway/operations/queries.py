"""Describes the queries that several lists take."""

from pydantic import Field

from toolfleet_tasks.dead_letters.kept_wakes import WaitingKind
from toolfleet_tasks.dead_letters.waiting_search import WantedWakes
from toolfleet_tasks.resources.queries import PageQuery, SearchQuery


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
