"""Shows who called what, and how it ended, page by page, for operators."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.rights.roles import needing
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.audit_reader import AuditReader, Wanted


class AuditQuery(BaseModel):
    """Which lines."""

    model_config = ConfigDict(extra="forbid")

    tool: str | None = Field(None, max_length=256, description="Only this tool's, or this module's.")
    user: str | None = Field(None, max_length=256, description="Only this user's.")
    outcome: str | None = Field(None, max_length=64, description="Only those with this outcome or error code.")
    limit: int = Field(50, ge=1, le=1_000, description="How many a page has.")
    cursor: str | None = Field(None, max_length=64, description="The `next` of the page before.")


class AuditLines(BaseModel):
    """Some of the audit."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    lines: list[dict[str, Any]]
    """The latest first."""
    count: int
    """How many these are; there may be none on a page that is followed by others."""
    next: str | None = None
    """The `cursor` of the next page, if there may be one."""


def audit_routes(settings: Settings) -> list[AnyRoute]:
    """What is answered about the audit."""

    async def listed(request: RouteRequest[None, AuditQuery]) -> Response:
        query = request.query
        async with AuditReader.of(settings) as reader:
            try:
                page = await reader.page(
                    query.limit, Wanted(query.tool, query.user, query.outcome), before=query.cursor
                )
            except ValueError:
                raise invalid_request("The cursor is none: send the `next` of an answer as it is.") from None
        return json_answer(AuditLines(lines=page.lines, count=len(page.lines), next=page.until))

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
