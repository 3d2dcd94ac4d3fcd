"""Describes a route: what it takes, what it answers, and who handles it; the OpenAPI document is made of that."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity

B = TypeVar("B")
Q = TypeVar("Q")

Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True)
class RouteRequest(Generic[B, Q]):
    """A request that was let in: `who` sends it, its `body` and `query` as the route's models have read them.

    `path` has the parts of the path that the route names. `raw` is Starlette's own, for headers and the like.
    """

    who: Identity
    body: B
    query: Q
    path: Mapping[str, str]
    raw: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a route: its body's `model`, if there is one, or another `media` type than JSON."""

    description: str
    model: type[BaseModel] | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header -> what it says."""
    events: Mapping[str, type[BaseModel] | None] = field(default_factory=dict)
    """Of a stream: the kinds of its own events, and the model of their data, if there is one."""


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    """A header that a route takes."""

    name: str
    description: str
    most: int | None = 256
    """Characters; `None`: what is too long is not refused, or its pattern says it."""
    pattern: str | None = None
    """What it looks like, as a regular expression of ECMA-262; it bounds the length, too."""
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[B, Q]):
    """One method of one path. `name` is the operation's id in the OpenAPI document, and its name in generated clients.

    `handle` gets the request and answers it, or raises `Problem`. `problems`: the statuses of its possible problems, in
    addition to those of every route. `body` and `query` are read by their models; a route without a `body` does not
    read one.
    """

    method: Method
    path: str
    name: str
    summary: str
    handle: Callable[[RouteRequest[B, Q]], Awaitable[Response]]
    answers: Mapping[int, Answer]
    body: type[B] | None = None
    query: type[Q] | None = None
    headers: tuple[HeaderParameter, ...] = ()
    problems: tuple[int, ...] = ()
    tag: str = "calls"
    is_public: bool = False
    """Whether it answers those who do not say who they are."""
    takes_bytes: bool = False
    """Whether the body is handed over as it came, for a route that verifies it first: it reads `body` by itself."""


AnyRoute: TypeAlias = Route[Any, Any]
