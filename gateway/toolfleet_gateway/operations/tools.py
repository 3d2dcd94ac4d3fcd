"""Changes which tools are in effect, and shows what is offered and not in effect, for operators."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.rights.roles import needing
from toolfleet_registry.catalog.operator import Difference, Operator, operating
from toolfleet_registry.settings import Settings

_TOOL, _MODULE = "/operations/tools/{name}", "/operations/modules/{module}"


class ShownDifference(BaseModel):
    """A tool that its module offers otherwise than it is in effect."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tool_name: str
    """The tool's name."""
    kind: str
    """`drifted`, `withheld` or `rolled_back`."""
    digest: str
    """That of what is offered, which an approval may name."""
    registered_digest: str | None = None
    """That of what is registered, if it is."""
    fields: dict[str, tuple[Any, Any]]
    """What differs: as registered, and as offered."""


class ToolState(BaseModel):
    """What is offered and not in effect, and what nobody may use."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    pending: list[ShownDifference]
    """By tool."""
    closed: dict[str, str]
    """Tools that nobody may use now, and why."""
    pinned: list[str]
    """Modules of which only what was approved takes effect."""


class ApprovalRequest(BaseModel):
    """What is approved."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    digest: str | None = Field(default=None, max_length=100)
    """Only if it is offered with this one."""


class ApprovedTool(BaseModel):
    """A tool that takes effect as it is offered."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tool_name: str
    """The tool's name."""
    digest: str
    """What was approved."""


class PinnedModule(BaseModel):
    """A module of which only what was approved takes effect."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    module: str
    """Its name."""
    digests: dict[str, str]
    """What is approved, by tool."""


def operated_tool_routes(settings: Settings) -> list[AnyRoute]:
    """What operators do about tools."""
    about = _AboutOperatedTools(settings)
    return [*_routes_of_tools(about), *_routes_of_pins(about)]


def _routes_of_tools(about: "_AboutOperatedTools") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path="/operations/tools",
            name="getToolState",
            summary="What is offered and not in effect, and what nobody may use; for viewers",
            handle=needing("viewer", about.state),
            answers={200: Answer("What there is.", ToolState)},
            tag="operations",
        ),
        about.change("disable", "Let nobody use a tool, until it is enabled", lambda one, name: one.disable(name)),
        about.change("enable", "Take a disabling back", lambda one, name: one.enable(name)),
        Route(
            method="POST",
            path=f"{_TOOL}/approve",
            name="approveTool",
            summary="Let what a module offers of a tool take effect; for operators",
            handle=needing("operator", about.approve),
            body=ApprovalRequest,
            answers={200: Answer("What was approved.", ApprovedTool)},
            problems=(409,),
            tag="operations",
        ),
    ]


def _routes_of_pins(about: "_AboutOperatedTools") -> list[AnyRoute]:
    return [
        Route(
            method="POST",
            path=f"{_MODULE}/pin",
            name="pinModule",
            summary="Approve a module's tools as they are in effect, and nothing else from now on; for operators",
            handle=needing("operator", about.pin),
            answers={200: Answer("What is approved.", PinnedModule)},
            problems=(409,),
            tag="operations",
        ),
        Route(
            method="POST",
            path=f"{_MODULE}/unpin",
            name="unpinModule",
            summary="Take in what a module offers without an approval; for operators",
            handle=needing("operator", about.unpin),
            answers={204: Answer("It is not pinned any more.")},
            problems=(409,),
            tag="operations",
        ),
    ]


class _AboutOperatedTools:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def change(self, verb: str, summary: str, work: Callable[[Operator, str], Awaitable[object]]) -> AnyRoute:
        """A route that does something about one tool, and has nothing to answer."""

        async def changed(request: RouteRequest[None, None]) -> Response:
            with refusals():
                async with operating(self._settings) as operator:
                    await work(operator, request.path["name"])
            return nothing()

        return Route(
            method="POST",
            path=f"{_TOOL}/{verb}",
            name=f"{verb}Tool",
            summary=f"{summary}; for operators",
            handle=needing("operator", changed),
            answers={204: Answer("It is done.")},
            problems=(409,),
            tag="operations",
        )

    async def state(self, request: RouteRequest[None, None]) -> Response:
        del request
        async with operating(self._settings) as operator:
            differences, closed, pins = (
                await operator.differences(),
                await operator.closed(),
                await operator.pins(),
            )
        return json_answer(ToolState(pending=[_shown(one) for one in differences], closed=closed, pinned=sorted(pins)))

    async def approve(self, request: RouteRequest[ApprovalRequest, None]) -> Response:
        with refusals():
            async with operating(self._settings) as operator:
                found = await operator.approve(request.path["name"], digest=request.body.digest)
        return json_answer(ApprovedTool(tool_name=found.tool_name, digest=found.digest))

    async def pin(self, request: RouteRequest[None, None]) -> Response:
        module = request.path["module"]
        with refusals():
            async with operating(self._settings) as operator:
                digests = await operator.pin(module)
        return json_answer(PinnedModule(module=module, digests=digests))

    async def unpin(self, request: RouteRequest[None, None]) -> Response:
        with refusals():
            async with operating(self._settings) as operator:
                await operator.unpin(request.path["module"])
        return nothing()


def _shown(one: Difference) -> ShownDifference:
    return ShownDifference(
        tool_name=one.tool_name,
        kind=one.kind,
        digest=one.digest,
        registered_digest=one.registered_digest,
        fields=one.fields(),
    )
