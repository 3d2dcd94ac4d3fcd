"""Declares what an operator can ask of a fleet, once for REST, the command line and the console.

An operation is a function with a decorator:

    @operation("DELETE", "/operations/dead-letters", role="operator", answers="The number of dropped letters.")
    async def drop_dead_letters(asked: OperationRequest[None, KindQuery]) -> DroppedLetters:
        \"\"\"Drop all dead letters, or all of one kind.\"\"\"

Its name, `dropDeadLetters`, is the operation's id; the first line of its docstring is the summary; the annotations name the models of
the body, the query and the answer. The gateway makes a route of it, and asks for the role. The command line calls it in its own
process, or asks a gateway for it.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.access import KeyMaker, Role, has_role
from toolfleet_registry.contracts import Caller
from toolfleet_registry.errors import InvalidQuestion, NoSuchEntry, RoleNeeded
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.operations.change_trail import Actor, ChangeKind, ChangeTrail, OperatorChange

if TYPE_CHECKING:
    from toolfleet_tasks.client.fleet import ToolFleet
    from toolfleet_tasks.operations.call_index import CallIndex

B = TypeVar("B")
Q = TypeVar("Q")
R = TypeVar("R")

Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True)
class FleetOperator:
    """The user who asks: `actor` in the audit, `caller` of calls that it makes itself, `maker` of API keys, `approver` of calls."""

    actor: Actor
    maker: KeyMaker
    """What it may do: no field has rights by default."""
    caller: Caller | None
    """Who it is as a caller; `None` for the command line, which makes calls of others in their own names."""
    may_reach_private: bool = False
    """Whether modules that it adds may have private addresses."""
    key_id: str | None = None
    """The id of the API key that the user holds."""
    acts_for: Callable[[str | None, str | None], Caller] | None = None
    """Returns the caller that a request names, at a gateway; refuses one that the key may not name."""

    @property
    def approver(self) -> Approver:
        """The same user, as one who decides about calls."""
        return Approver(self.actor.by, self.actor.user_id, self.maker.permission, self.key_id)

    def caller_for(self, user_id: str | None = None, agent: str | None = None) -> Caller:
        """Return the caller in whose name the user acts: as a request names it, or the user's own for `None`."""
        if self.acts_for is not None:
            return self.acts_for(user_id, agent)
        named = {name: value for name, value in (("user_id", user_id), ("agent", agent)) if value is not None}
        return (self.caller or Caller()).model_copy(update=named)

    def require(self, role: Role) -> None:
        """Raise `RoleNeeded` if the operator does not have the role."""
        if not has_role(self.maker.role, role):
            raise RoleNeeded(role)


@dataclass(slots=True, kw_only=True)
class OperationRequest(Generic[B, Q]):
    """One request for an operation. `path` has the parts of the path that the operation names."""

    settings: Settings
    operator: FleetOperator
    fleet: "Callable[[], Awaitable[ToolFleet]]"
    """Returns the client for operations that make calls; it is opened when it is first asked for."""
    body: B
    query: Q
    calls: "CallIndex | None" = None
    """The index of calls that a gateway keeps."""
    path: Mapping[str, str] = field(default_factory=dict)
    expected_version: int | None = None
    """The version that the operator has seen; `None`: any. For operations that are `versioned`."""
    audit_missed: int = 0
    """The number of audit lines that could not be written, as far as is known."""

    @asynccontextmanager
    async def change(self, kind: ChangeKind, subject: str, **facts: str | int) -> AsyncGenerator[OperatorChange]:
        """Make a change in the block, with its line in the audit. See `ChangeTrail.change`."""
        async with self.trail() as trail, trail.change(kind, subject, **facts) as change:
            yield change

    @asynccontextmanager
    async def trail(self) -> AsyncGenerator[ChangeTrail]:
        """Open the audit trail for several changes."""
        async with ChangeTrail.of(self.settings, self.operator.actor) as trail:
            try:
                yield trail
            finally:
                self.audit_missed += trail.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOperation(Generic[B, Q, R]):
    """An operation on a fleet, and who may ask for it. `run` does it, and raises `OperationRefused` if that is not possible."""

    name: str
    method: Method
    path: str
    role: Role
    summary: str
    run: Callable[[OperationRequest[B, Q]], Awaitable[R]]
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    answer: type[BaseModel] | None
    """The model of the answer; `None`: there is nothing to say."""
    answers: str
    """What the answer tells."""
    status: int
    """Of the answer over HTTP; by default 200, or 204 where there is no answer."""
    tag: str
    """The chapter of the OpenAPI document; by default the first part of the path."""
    problems: tuple[int, ...] = ()
    """The statuses of its own refusals over HTTP."""
    is_versioned: bool = False
    """Whether it is about a `version`, which a request can expect with `If-Match`, and which the answer has as its `ETag`."""
    keeps_none: bool = False
    """Whether fields that are `None` are part of the answer."""
    is_for_owner: bool = False
    """Whether the user whom it is about may ask for it without the role: then `run` requires the role of others."""
    is_cached: bool = False
    """Whether clients may keep the answer, and ask with `If-None-Match` whether it is another one."""
    is_long: Callable[[R], bool] = lambda _: False
    """Whether an answer is so long that it is written in a thread: that takes some ms, which other requests should not wait."""


def operation(
    method: Method, path: str, *, role: Role, answers: str, **facts: Any
) -> Callable[[Callable[[OperationRequest[B, Q]], Awaitable[R]]], ResourceOperation[B, Q, R]]:
    """Declare a function as an operation.

    Args:
        method: Of the route.
        path: Of the route; `{name}` is a part that `OperationRequest.path` has.
        role: The lowest role that may ask for it; `none`: all users may, and the operation itself says what is theirs.
        answers: What the answer tells, in a sentence.
        **facts: More fields of `ResourceOperation`.

    """

    def declared(run: Callable[[OperationRequest[B, Q]], Awaitable[R]]) -> ResourceOperation[B, Q, R]:
        hints = get_type_hints(run)
        body, query = (None if model is type(None) else model for model in get_args(hints["asked"]))
        answer = None if hints["return"] is type(None) else hints["return"]
        first, *others = run.__name__.split("_")
        summary = [str(run.__doc__).splitlines()[0].removesuffix("."), "" if role == "none" else f"; for {role}s"]
        usual = {"status": 204 if answer is None else 200, "tag": path.split("/")[1]}
        return ResourceOperation(
            name=first + "".join(word.capitalize() for word in others),
            method=method,
            path=path,
            role=role,
            summary="".join(summary) + (", and for its own user" if facts.get("is_for_owner") else ""),
            run=run,
            body=body,
            query=query,
            answer=answer,
            answers=answers,
            **{**usual, **facts},
        )

    return declared


AnyOperation = ResourceOperation[Any, Any, Any]


class AnswerModel(BaseModel):
    """The answer of an operation, or a part of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class BodyModel(BaseModel):
    """The body of a request for an operation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class QueryModel(BaseModel):
    """The query of a request for an operation."""

    model_config = ConfigDict(extra="forbid")


class PageQuery(QueryModel):
    """A query for a part of a list."""

    limit: int = Field(50, ge=1, le=1_000, description="How many at most.")
    offset: int = Field(0, ge=0, le=1_000_000, description="How many of the first are left out.")


class SearchQuery(QueryModel):
    """A query for waiting or dead entries with certain words, and of a certain age; and for a part of them."""

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


def absent(what: str) -> NoSuchEntry:
    """Return the error of an entry that is not there, or that the user may not see."""
    return NoSuchEntry(f"There is no such {what}, or not any more.")
