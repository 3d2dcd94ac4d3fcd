"""Lists, stores, rolls back and removes the profiles of agents, for viewers and admins."""

import asyncio
import re
from collections.abc import Generator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, HeaderParameter, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.roles import needing
from toolfleet_registry.config.agents.agent_profile import AgentProfile
from toolfleet_registry.errors import NoSuchProfile, ProfileChanged
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.agent_changes import AgentChanges
from toolfleet_tasks.operations.agent_overview import (
    AgentList,
    AgentOverview,
    AgentVersions,
    agents_of,
    profile_notes,
    shown_agent,
    versions_of,
)

_ALL, _ONE = "/operations/agents", "/operations/agents/{name}"
_TAGS = {"ETag": 'The version of the stored profile in quotation marks; `"0"`: there is none.'}
_IF_MATCH = HeaderParameter(
    "If-Match",
    'The version that was seen, as `ETag` has it: with another one there, nothing is changed. `"0"`: there is none.',
    pattern=r'^("[0-9]{1,15}"|\*)$',
)
_VERSION = re.compile(r'"([0-9]{1,15})"')


class StoredVersion(BaseModel):
    """What was stored."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    version: int
    """Its number."""
    notes: list[str] | None = None
    """The parts of it that have no effect, in sentences."""


class ProfileRollback(BaseModel):
    """Which version is to be put again."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    version: int = Field(ge=1, le=2**53)
    """Its number."""


def agent_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of agents: viewers read, admins change."""
    about = _AboutAgents(settings)
    return [*_routes_of_all(about), *_routes_of_one(about), *_routes_of_versions(about)]


def _routes_of_all(about: "_AboutAgents") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=_ALL,
            name="listAgents",
            summary="The agents that have a profile, and what each may do at most; for viewers",
            handle=needing("viewer", about.listed),
            answers={200: Answer("By name.", AgentList)},
            tag="operations",
        ),
        Route(
            method="GET",
            path=_ONE,
            name="getAgent",
            summary="What an agent may do at most, and which profile says it; for viewers",
            handle=needing("viewer", about.one),
            answers={200: Answer("The agent.", AgentOverview, headers=_TAGS)},
            problems=(404,),
            tag="operations",
        ),
    ]


def _routes_of_one(about: "_AboutAgents") -> list[AnyRoute]:
    return [
        Route(
            method="PUT",
            path=_ONE,
            name="putAgent",
            summary="Store a profile in the registry, in the place of the one that is there; for admins",
            handle=needing("admin", about.put),
            body=AgentProfile,
            headers=(_IF_MATCH,),
            answers={200: Answer("It is in force.", StoredVersion, headers=_TAGS)},
            problems=(409, 412),
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_ONE,
            name="removeAgent",
            summary="Remove a profile from the registry; for admins",
            handle=needing("admin", about.removed),
            headers=(_IF_MATCH,),
            answers={204: Answer("The registry has none any more; its versions are kept.")},
            problems=(404, 409, 412),
            tag="operations",
        ),
    ]


def _routes_of_versions(about: "_AboutAgents") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=f"{_ONE}/versions",
            name="listAgentVersions",
            summary="The last 20 versions of a profile in the registry; for viewers",
            handle=needing("viewer", about.versions),
            answers={200: Answer("The latest first.", AgentVersions)},
            problems=(404,),
            tag="operations",
        ),
        Route(
            method="POST",
            path=f"{_ONE}/rollback",
            name="rollBackAgent",
            summary="Put an earlier version of a profile again, as a new one; for admins",
            handle=needing("admin", about.rolled_back),
            body=ProfileRollback,
            headers=(_IF_MATCH,),
            answers={200: Answer("It is in force.", StoredVersion, headers=_TAGS)},
            problems=(404, 409, 412),
            tag="operations",
        ),
    ]


class _AboutAgents:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def listed(self, request: RouteRequest[None, None]) -> Response:
        del request
        agents = await asyncio.to_thread(agents_of, self._settings)
        return json_answer(AgentList(agents=agents, count=len(agents)))

    async def one(self, request: RouteRequest[None, None]) -> Response:
        with _refusals():
            found = await shown_agent(request.path["name"], self._settings)
        return json_answer(found, headers={"etag": f'"{found.version}"'})

    async def versions(self, request: RouteRequest[None, None]) -> Response:
        with _refusals():
            return json_answer(await asyncio.to_thread(versions_of, request.path["name"], self._settings))

    async def put(self, request: RouteRequest[AgentProfile, None]) -> Response:
        expected = _expected(request.raw)
        async with AgentChanges.of(self._settings, actor_of(request.who)) as changes:
            with _refusals():
                made = await changes.put(request.path["name"], request.body, expected=expected)
        notes = [note.text for note in await profile_notes(self._settings, request.path["name"])]
        return json_answer(
            StoredVersion(version=made.version, notes=notes or None), headers={"etag": f'"{made.version}"'}
        )

    async def rolled_back(self, request: RouteRequest[ProfileRollback, None]) -> Response:
        expected = _expected(request.raw)
        async with AgentChanges.of(self._settings, actor_of(request.who)) as changes:
            with _refusals():
                made = await changes.rollback(request.path["name"], request.body.version, expected=expected)
        return json_answer(StoredVersion(version=made.version), headers={"etag": f'"{made.version}"'})

    async def removed(self, request: RouteRequest[None, None]) -> Response:
        expected = _expected(request.raw)
        async with AgentChanges.of(self._settings, actor_of(request.who)) as changes:
            with _refusals():
                await changes.remove(request.path["name"], expected=expected)
        return nothing()


def _expected(request: Request) -> int | None:
    """Return the version that the client has seen; `None`: any. Raises `Problem`."""
    said = request.headers.getlist("if-match")
    if not said or said == ["*"]:
        return None
    found = _VERSION.fullmatch(said[0].strip())
    if len(said) > 1 or found is None:
        raise invalid_request('If-Match must be the version that was seen, as the header ETag has it: "3".')
    return int(found[1])


@contextmanager
def _refusals() -> Generator[None]:
    """Raise `Problem`: 404 for a missing profile, 412 for a newer change, 409 for a refused operation."""
    with refusals():
        try:
            yield
        except NoSuchProfile as exc:
            raise not_found(str(exc)) from exc
        except ProfileChanged as exc:
            headers = {} if exc.version is None else {"etag": f'"{exc.version}"'}
            raise Problem(412, "profile_changed", str(exc), headers=headers) from exc
