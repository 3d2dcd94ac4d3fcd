"""Serves large results over REST, whole or in ranges, and deletes them."""

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from pydantic import Field
from starlette.responses import Response

from toolfleet_gateway.http.entrance import operator_of
from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_gateway.http.routes import Answer, HeaderParameter, RouteRequest, nothing, route
from toolfleet_registry.access import AgentNames, UserName
from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.artifacts import NOT_YOURS
from toolfleet_registry.errors import ArtifactMissing, ArtifactStoreAway, PersonalDataBlocked
from toolfleet_tasks.artifacts import OpenedArtifact
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.operation import QueryModel

_PATH = "/artifacts/{artifact_id}"
_RANGE = HeaderParameter(
    "Range", "`bytes=0-1023`, `bytes=1024-` or `bytes=-1024`: one range. Another form is ignored.", most=None
)
_PARTIAL = {"Content-Range": "Which bytes these are, and of how many."}
_BYTES = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
_BINARY: Final = "application/octet-stream"


class ArtifactReader(QueryModel):
    """The user and the agent for whom an artifact is asked for."""

    user_id: UserName | None = None
    """The user, for keys that may act for others."""
    agent: AgentNames | None = None
    """The agent whose profile says what is hidden; a key of an agent takes no other one."""
    approval_id: str | None = Field(None, max_length=256)
    """The approval of a call that is to have it as an argument, for those who may decide about that."""


@dataclass(frozen=True, slots=True)
class ArtifactRoutes:
    """The routes of artifacts. Another owner's looks like an unknown id."""

    fleet: ToolFleet

    @route(
        "GET",
        _PATH,
        "Read a large result",
        {
            200: Answer("The whole.", media=_BINARY),
            206: Answer("The range that was asked for.", media=_BINARY, headers=_PARTIAL),
        },
        headers=(_RANGE,),
        problems=(404, 416, 503),
    )
    async def get_artifact(self, asked: RouteRequest[None, ArtifactReader]) -> Response:
        """Answer with an artifact's bytes. They are never shown as a page: a module has written them."""
        opened = await self._opened(asked)
        span = _range_of(asked.raw.headers.get("range"), opened.size)
        start, end = (0, opened.size) if span is None else span
        try:
            data = await opened.read(start, end)
        except (ArtifactMissing, ArtifactStoreAway) as exc:
            raise problem_of_artifact(exc) from exc
        headers = {"accept-ranges": "bytes", "content-disposition": "attachment"}
        if opened.filtered is None and span is None:  # of a part it is not known whether it was changed
            headers["etag"] = f'"{opened.record.sha256}"'
        if span is not None:
            headers["content-range"] = f"bytes {start}-{end - 1}/{opened.size}"
        return Response(data, 200 if span is None else 206, headers, media_type=opened.record.media_type)

    async def _opened(self, asked: RouteRequest[None, ArtifactReader]) -> OpenedArtifact:
        query, artifact_id = asked.query, asked.path["artifact_id"]
        if query.approval_id is None:
            return await opened_artifact(self.fleet, artifact_id, asked.who.caller_for(query.user_id, query.agent))
        viewer = operator_of(asked.who).approver
        return await _found(self.fleet.artifacts.open_for_approval(artifact_id, query.approval_id, viewer))

    @route("DELETE", _PATH, "Delete a large result", {204: Answer("It is gone.")}, problems=(404, 503))
    async def delete_artifact(self, asked: RouteRequest[None, ArtifactReader]) -> Response:
        """Delete an artifact; the result in which it was stays."""
        caller = asked.who.caller_for(asked.query.user_id, asked.query.agent)
        if not await self.fleet.artifacts.delete(asked.path["artifact_id"], caller):
            raise not_found(NOT_YOURS)
        return nothing()


async def opened_artifact(fleet: ToolFleet, artifact_id: str, caller: Caller) -> OpenedArtifact:
    """Open an artifact for a caller. Raises `Problem`."""
    return await _found(fleet.artifacts.open(artifact_id, caller))


async def _found(opening: Awaitable[OpenedArtifact | None]) -> OpenedArtifact:
    try:
        opened = await opening
    except (ArtifactMissing, ArtifactStoreAway, PersonalDataBlocked) as exc:
        raise problem_of_artifact(exc) from exc
    if opened is None:
        raise not_found(NOT_YOURS)
    return opened


def problem_of_artifact(error: Exception) -> Problem:
    """Return the problem of an artifact that cannot be read now, or not by this reader."""
    if isinstance(error, ArtifactStoreAway):
        return Problem(503, "fleet_unavailable", str(error), retryable=True, retry_after_seconds=1.0)
    return not_found(NOT_YOURS)


def _range_of(text: str | None, size: int) -> tuple[int, int] | None:
    """Return the range of bytes, its end excluded; `None` for the whole. Raises `Problem`, 416, for one beyond the end."""
    found = _BYTES.fullmatch((text or "").replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= size or start >= end:
        raise Problem(416, "invalid_request", f"It has {size} bytes.", headers={"content-range": f"bytes */{size}"})
    return start, end
