"""Lists, tries and drops wake-ups that wait to be accepted."""

from collections.abc import Awaitable, Callable

from pydantic import Field, RootModel

from toolfleet_registry.errors import InvalidQuestion
from toolfleet_tasks.dead_letters.kept_wakes import (
    FoundWakes,
    KeptWake,
    WaitingKind,
    WantedWakes,
    is_mark,
    search_waiting,
)
from toolfleet_tasks.dead_letters.letters import DeadEntries
from toolfleet_tasks.operations.changes import HandledWakes, WakeupChanges
from toolfleet_tasks.resources.operation import (
    AnswerModel,
    OperationRequest,
    PageQuery,
    SearchQuery,
    absent,
    no_cursor,
    operation,
)

_ALL, _ONE = "/operations/wake-ups", "/operations/wake-ups/{wake_id}"


class ChosenWakeups(SearchQuery):
    """A filter of waiting wake-ups."""

    kind: WaitingKind | None = Field(None, description="Only those of this kind.")

    @property
    def wanted(self) -> WantedWakes:
        """As the search takes it."""
        return WantedWakes(self.kind, self.about, self.error, self.until)

    def mark(self) -> str | None:
        """Return the cursor, if there is one. Raises `InvalidQuestion` if it is invalid."""
        if self.cursor is not None and not is_mark(self.cursor):
            raise no_cursor()
        return self.cursor


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


class WakeupList(AnswerModel):
    """Wake-ups that wait to be accepted."""

    wakeups: list[KeptWake]
    """Those that are tried next first."""
    count: int
    """How many these are."""
    next: str | None = None
    """The `cursor` behind which there may be more. With fewer wake-ups than `limit`: one question looks at 5,000, and not all were searched."""


class ShownWakeup(RootModel[KeptWake]):
    """One wake-up."""


class DroppedWakeup(AnswerModel):
    """The outcome of dropping a wake-up."""

    under_way: bool
    """Whether it is tried just now: that try may still be accepted, and no other one is begun."""


class HandledWakeups(AnswerModel):
    """The outcome of one step over the wake-ups of a filter."""

    done: int
    """How many were dropped, or are tried now."""
    passed: int
    """How many were due already, or handled by somebody else."""
    under_way: int
    """How many of those that were dropped are tried just now, and may still be accepted."""
    problems: list[str]
    """What is the matter with others, a sentence each."""
    next: str | None = None
    """The `cursor` of the next step; without one nothing is left."""


@operation("GET", _ALL, role="viewer", answers="Those that are tried next first.")
async def list_wakeups(asked: OperationRequest[None, WakeupQuery]) -> WakeupList:
    """List wake-ups that wait to be accepted."""
    query, conversation_id = asked.query, asked.query.conversation_id
    if query.is_search and (query.offset or conversation_id is not None):
        raise InvalidQuestion(
            "Go on with the `cursor`: neither `offset` nor `conversation_id` go with words or an age."
        )
    if query.offset and conversation_id is not None:
        raise InvalidQuestion("An `offset` does not go with a `conversation_id`.")
    async with DeadEntries.of(asked.settings) as dead:
        if conversation_id is not None:
            found = FoundWakes(await dead.events.of_conversation(conversation_id, query.limit))
        elif query.offset:
            found = FoundWakes(await dead.events.waiting(query.limit, query.offset))
        else:
            found = await search_waiting(dead.events, query.wanted, behind=query.mark(), limit=query.limit)
    return WakeupList(wakeups=found.wakes, count=len(found.wakes), next=found.next)


@operation("GET", _ONE, role="viewer", answers="It.", problems=(404,))
async def get_wakeup(asked: OperationRequest[None, None]) -> ShownWakeup:
    """Return a wake-up that waits, or that was never accepted."""
    async with DeadEntries.of(asked.settings) as dead:
        found = await dead.events.show(asked.path["wake_id"])
    if found is None:
        raise absent("wake-up")
    return ShownWakeup(found)


@operation("POST", f"{_ONE}/replay", role="operator", answers="It is due.", problems=(404, 409))
async def replay_wakeup(asked: OperationRequest[None, None]) -> None:
    """Try a wake-up now."""
    async with WakeupChanges.of(asked.settings, asked.operator.actor) as changes:
        if not await changes.replay(asked.path["wake_id"]):
            raise absent("wake-up")


@operation("POST", f"{_ALL}/replay", role="operator", answers="What the step has come to.")
async def replay_wakeups(asked: OperationRequest[None, WakeupStepQuery]) -> HandledWakeups:
    """Try all wake-ups of a filter now, step by step."""
    return await _stepped(asked, WakeupChanges.replay_found)


@operation("DELETE", _ONE, role="operator", answers="It is forgotten.", problems=(404,))
async def drop_wakeup(asked: OperationRequest[None, None]) -> DroppedWakeup:
    """Drop a wake-up that waits."""
    async with WakeupChanges.of(asked.settings, asked.operator.actor) as changes:
        became = await changes.drop(asked.path["wake_id"])
    if became is None:
        raise absent("wake-up")
    return DroppedWakeup(under_way=became == "under_way")


@operation("DELETE", _ALL, role="operator", answers="What the step has come to.")
async def drop_wakeups(asked: OperationRequest[None, WakeupStepQuery]) -> HandledWakeups:
    """Drop all wake-ups of a filter, step by step."""
    return await _stepped(asked, WakeupChanges.drop_found)


async def _stepped(
    asked: OperationRequest[None, WakeupStepQuery], handle: Callable[..., Awaitable[HandledWakes]]
) -> HandledWakeups:
    query, mark = asked.query, asked.query.mark()
    async with WakeupChanges.of(asked.settings, asked.operator.actor) as changes:
        step = await handle(changes, query.wanted, behind=mark, limit=query.limit)
    return HandledWakeups.model_validate(step, from_attributes=True)
