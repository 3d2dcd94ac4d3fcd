"""Lists, replays and drops dead letters: calls with an unknown end, wake-ups and webhook events that were not accepted."""

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import (
    InvalidQuestion,
    NoSuchDeadLetter,
    NotReplayable,
    SeveralLetters,
)
from toolfleet_tasks.dead_letters.letters import DeadEntries
from toolfleet_tasks.dead_letters.store import KINDS, DeadEntry, DeadKind, WantedLetters
from toolfleet_tasks.resources.operation import (
    AnswerModel,
    BodyModel,
    OperationRequest,
    PageQuery,
    QueryModel,
    SearchQuery,
    absent,
    no_cursor,
    operation,
)

MOST_AT_ONCE: Final = 1_000
"""The number of letters that are replayed together."""

_ALL, _ONE = "/operations/dead-letters", "/operations/dead-letters/{letter_id}"
_LONGEST_SECONDS = 300.0


class KindQuery(QueryModel):
    """A query for dead letters of a kind, of all or of those that have one id."""

    kind: DeadKind | None = Field(None, description="What has died: a call, a wake-up, or an event for a webhook.")

    @property
    def kinds(self) -> tuple[DeadKind, ...]:
        """Their kinds."""
        return KINDS if self.kind is None else (self.kind,)


class EventKindQuery(QueryModel):
    """A query for a kind of events, which are handled together: calls are replayed one by one."""

    kind: Literal["wakeup", "webhook"] = Field(description="Wake-ups, or events for webhooks.")


class DeadQuery(KindQuery, PageQuery, SearchQuery):
    """A query for dead letters. Neither a cursor, words nor an age go with `offset`."""

    @property
    def wanted(self) -> WantedLetters:
        """As the search takes it."""
        return WantedLetters(self.kinds, self.about, self.error, self.until)


class DeadLetterList(AnswerModel):
    """Dead letters."""

    letters: list[DeadEntry]
    """The latest first."""
    count: int
    """How many these are."""
    next: str | None = None
    """The `cursor` behind which there may be more. With fewer letters than `limit`: one question looks at 5,000, and not all were searched."""


class ReplayRequest(BodyModel):
    """How a dead letter is tried anew."""

    arguments: dict[str, Any] | None = None
    """In the place of a call's own. Then it is made in the name of whoever asks, and judged by what they may do."""
    timeout_seconds: float = Field(default=60, gt=0, le=_LONGEST_SECONDS)
    """By when a call has ended."""


class ReplayReport(AnswerModel):
    """The outcome of a replay."""

    is_due: bool
    """Whether the news are on their way again; a call has its result instead."""
    result: ToolResult | None = None
    """How the call has ended, of a letter that is one."""


class ReplayAllReport(AnswerModel):
    """The outcome of replaying many letters."""

    due: int
    """How many are on their way again."""
    problems: list[str]
    """What is the matter with the others, a sentence each."""


class DroppedLetters(AnswerModel):
    """The outcome of dropping all letters."""

    dropped: int
    """How many there were."""


@operation("GET", _ALL, role="viewer", answers="The latest first.")
async def list_dead_letters(asked: OperationRequest[None, DeadQuery]) -> DeadLetterList:
    """List dead letters."""
    query = asked.query
    async with DeadEntries.of(asked.settings) as dead:
        if query.offset and query.is_search:
            raise InvalidQuestion("Go on with the `cursor`: an `offset` goes with neither words nor an age.")
        if query.offset:
            letters = await dead.list(query.kinds, query.limit, query.offset)
            return DeadLetterList(letters=list(letters), count=len(letters))
        try:
            found = await dead.search(query.wanted, behind=query.cursor, limit=query.limit)
        except ValueError:
            raise no_cursor() from None
    return DeadLetterList(letters=found.entries, count=len(found.entries), next=found.next)


@operation(
    "GET", _ONE, role="viewer", answers="All that is kept of it, one letter of each kind with this id.", problems=(404,)
)
async def get_dead_letter(asked: OperationRequest[None, KindQuery]) -> DeadLetterList:
    """Return a dead letter."""
    async with DeadEntries.of(asked.settings) as dead:
        letters = await _found(dead, asked.path["letter_id"], asked.query.kinds)
    return DeadLetterList(letters=list(letters), count=len(letters))


@operation("POST", f"{_ONE}/replay", role="operator", answers="What came of it.", problems=(404, 409))
async def replay_dead_letter(asked: OperationRequest[ReplayRequest, KindQuery]) -> ReplayReport:
    """Run a call once more in the same name, or send an event again."""
    letter_id, body = asked.path["letter_id"], asked.body
    own = None if body.arguments is None else asked.operator.caller
    async with DeadEntries.of(asked.settings) as dead:
        letter = _only(await _found(dead, letter_id, asked.query.kinds))
        if letter.kind != "call":
            async with asked.change("dead_letter_replayed", letter_id):
                if not await dead.events.replay(letter_id):
                    raise absent("dead letter")
            return ReplayReport(is_due=True)
    fleet = await asked.fleet()
    try:
        async with asked.change("dead_letter_replayed", letter_id) as change:
            result = await fleet.dead_letters.replay(
                letter_id, own, arguments=body.arguments, timeout=body.timeout_seconds
            )
            change.facts["call_id"] = result.audit.call_id
    except NoSuchDeadLetter:  # dropped just now
        raise absent("dead letter") from None
    return ReplayReport(is_due=False, result=result)


@operation("POST", f"{_ALL}/replay", role="operator", answers="What came of it.")
async def replay_dead_letters(asked: OperationRequest[None, EventKindQuery]) -> ReplayAllReport:
    """Send the latest 1,000 dead wake-ups, or webhook events, again."""
    problems, kind = list[str](), asked.query.kind
    async with DeadEntries.of(asked.settings) as dead, asked.change("dead_letters_replayed", kind) as change:
        letters = await dead.list((kind,), MOST_AT_ONCE)
        for letter in letters:
            try:
                problems += [] if await dead.events.replay(letter.id) else [str(NoSuchDeadLetter(letter.id))]
            except NotReplayable as exc:
                problems.append(str(exc))
        change.facts["count"] = due = len(letters) - len(problems)
    return ReplayAllReport(due=due, problems=problems)


@operation("DELETE", _ONE, role="operator", answers="It is forgotten.", problems=(404, 409))
async def drop_dead_letter(asked: OperationRequest[None, KindQuery]) -> None:
    """Drop a dead letter."""
    letter_id = asked.path["letter_id"]
    async with DeadEntries.of(asked.settings) as dead, asked.change("dead_letter_dropped", letter_id):
        letter = _only(await _found(dead, letter_id, asked.query.kinds))
        if not await dead.drop([letter_id], (letter.kind,)):
            raise absent("dead letter")


@operation("DELETE", _ALL, role="operator", answers="How many there were.")
async def drop_dead_letters(asked: OperationRequest[None, KindQuery]) -> DroppedLetters:
    """Drop all dead letters, or all of one kind."""
    kinds = asked.query.kinds
    async with DeadEntries.of(asked.settings) as dead, asked.change("dead_letters_dropped", ", ".join(kinds)) as change:
        change.facts["count"] = count = await dead.drop_all(kinds)
    return DroppedLetters(dropped=count)


async def _found(dead: DeadEntries, letter_id: str, kinds: Collection[DeadKind]) -> Sequence[DeadEntry]:
    letters = await dead.find(letter_id, kinds)
    if not letters:
        raise absent("dead letter")
    return letters


def _only(letters: Sequence[DeadEntry]) -> DeadEntry:
    if len(letters) > 1:
        raise SeveralLetters
    return letters[0]
