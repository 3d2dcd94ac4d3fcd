"""Shows who called what, and how it ended, page by page, for operators."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.roles import needing
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.audit_reader import AuditReader, Wanted

_CURSOR = "^[0-9]{1,19}-[0-9]{1,19}$"


class AuditQuery(BaseModel):
    """A query for audit lines."""

    model_config = ConfigDict(extra="forbid")

    tool: str | None = Field(None, max_length=256, description="Only this tool's, or this module's.")
    user: str | None = Field(None, max_length=256, description="Only this user's.")
    outcome: str | None = Field(None, max_length=64, description="Only those with this outcome or error code.")
    limit: int = Field(50, ge=1, le=1_000, description="How many a page has.")
    changes: bool = Field(False, description="Only what operators have changed, and no calls.")
    cursor: str | None = Field(None, max_length=64, pattern=_CURSOR, description="The `next` of the page before.")
    after: str | None = Field(
        None,
        max_length=64,
        pattern=_CURSOR,
        description="What has come behind this `last`, oldest first. No `cursor` then.",
    )


class AuditLines(BaseModel):
    """Some of the audit."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    lines: list[dict[str, Any]]
    """The latest first; with `after` the oldest first."""
    count: int
    """How many these are; there may be none on a page that is followed by others."""
    next: str | None = None
    """The `cursor` of the next page, if there may be one."""
    last: str | None = None
    """Without a `cursor`: the `after` of what comes next."""


def audit_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of the audit."""

    async def listed(request: RouteRequest[None, AuditQuery]) -> Response:
        query = request.query
        if query.after is not None and query.cursor is not None:
            raise invalid_request("Send either `after` or `cursor`.")
        async with AuditReader.of(settings) as reader:
            try:
                return json_answer(await _lines(reader, query))
            except ValueError:
                raise invalid_request(
                    "The cursor is none: send the `next`, or the `last`, of an answer as it is."
                ) from None

    return [
        Route(
            method="GET",
            path="/operations/audit",
            name="listAudit",
            summary="Who called what, and how it ended; for viewers",
            handle=needing("viewer", listed),
            query=AuditQuery,
            answers={200: Answer("The latest first.", AuditLines)},
            tag="operations",
        )
    ]


async def _lines(reader: AuditReader, query: AuditQuery) -> AuditLines:
    wanted = Wanted(query.tool, query.user, query.outcome, only_changes=query.changes)
    if query.after is not None:
        coming = await reader.behind(query.after, query.limit, wanted)
        return AuditLines(lines=coming.lines, count=len(coming.lines), last=coming.last)
    page = await reader.page(query.limit, wanted, before=query.cursor)
    return AuditLines(
        lines=page.lines, count=len(page.lines), next=page.until, last=None if query.cursor else page.last
    )
