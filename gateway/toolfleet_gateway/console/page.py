"""Describes a page: its path, who may see it, and who answers its requests."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.console.form_body import FormFields
from toolfleet_gateway.console.gateway_routes import NOTHING, GatewayRoutes, Json, RouteQuestion
from toolfleet_gateway.console.sessions import ConsoleSession
from toolfleet_registry.access.roles import Role

Tone = Literal["good", "bad"]
"""Whether something has gone well."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a signed-in user: `who`, in which `session`, with which `form` or `query`."""

    who: Identity
    session: ConsoleSession
    routes: GatewayRoutes
    request: Request
    path: Mapping[str, str]
    query: FormFields
    form: FormFields

    async def ask(self, name: str, asked: RouteQuestion = NOTHING) -> Json:
        """Ask a route of the gateway, as who is signed in."""
        return await self.routes.ask(self.who, name, asked)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that is to be written: a `template`, and what it says."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made: what came of it, and the page (below the console's path) that says so."""

    text: str
    path: str
    tone: Tone = "good"


Outcome: TypeAlias = Shown | Done | Response


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """One method of one path below `/console`. Who has not the role gets neither the page nor a link to it."""

    method: Literal["GET", "POST"]
    path: str
    handle: Callable[[Visit], Awaitable[Outcome]]
    role: Role = "viewer"
