"""Asks for the operations of operators' resources: in this process, which reaches the fleet's stores, or at a gateway."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import typer
from pydantic import BaseModel, ValidationError

from toolfleet_cli.console.output import note, progress
from toolfleet_cli.remote import Gateway, place
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet import ToolFleet
    from toolfleet_tasks.resources.operation import ResourceOperation

R = TypeVar("R")

_SECONDS: Final = 60.0


def ask(
    operation: "ResourceOperation[Any, Any, R]",
    gateway: Gateway | None,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | BaseModel | None = None,
    by: str | None = None,
    seconds: float = _SECONDS,
    settings: Settings | None = None,
) -> R:
    """Ask for an operation and return its answer.

    Args:
        operation: What is asked for.
        gateway: The gateway that is asked; `None`: it is done in this process, with the settings that it finds.
        path: The parts of the operation's path.
        query: Its query; fields that are `None` are left out.
        body: Its body.
        by: The user's name in the audit, where no gateway is asked; by default the name on this machine.
        seconds: How long a gateway may take.
        settings: Those of this process, where no gateway is asked, for a command that asks again and again: the fleet may end
            meanwhile, and its run file with it. By default they are read.

    Raises:
        OperationRefused: It cannot be done. A command that does not handle it ends with its sentence.
        FleetUnavailable: Redis, or the gateway, does not answer.
        typer.BadParameter: The query or the body is invalid.

    """
    known = {name: value for name, value in (query or {}).items() if value is not None}
    if gateway is None:
        return asyncio.run(_here(operation, path or {}, known, body, by, settings or load_settings()))
    where = "".join(
        f"/{part}" if not part.startswith("{") else place((path or {})[part[1:-1]])
        for part in operation.path.split("/")[1:]
    )
    options = dict[str, Any]()
    if body is not None:  # without fields at their defaults, which an older gateway may not know
        options["json"] = body.model_dump(mode="json", exclude_defaults=True) if isinstance(body, BaseModel) else body
    found = gateway.ask(operation.method, where, seconds=seconds, params=known, **options)
    return cast("R", None if operation.answer is None else operation.answer.model_validate(found))


async def _here(
    operation: "ResourceOperation[Any, Any, R]",
    path: Mapping[str, str],
    query: Mapping[str, Any],
    body: Mapping[str, Any] | BaseModel | None,
    by: str | None,
    settings: Settings,
) -> R:
    from toolfleet_registry.access import COMMAND_LINE
    from toolfleet_tasks.operations.change_trail import Actor
    from toolfleet_tasks.resources.operation import FleetOperator, OperationRequest

    async with AsyncExitStack() as stack:

        async def fleet() -> "ToolFleet":
            from toolfleet import ToolFleet  # takes a second to load, and few operations make calls

            return await stack.enter_async_context(ToolFleet(settings=settings))

        asked = OperationRequest(
            settings=settings,
            # It reaches the stores anyway.
            operator=FleetOperator(Actor.at_command_line(by), COMMAND_LINE, caller=None, may_reach_private=True),
            fleet=fleet,
            body=body if isinstance(body, BaseModel) else _read(operation.body, body or {}),
            query=_read(operation.query, query),
            path=path,
        )
        async with progress("Waiting for the fleet"):
            answer = await operation.run(asked)
    if asked.audit_missed:  # what was changed may be in a database
        note("The audit may have no line of this: there is no Redis that answers.", style="dim")
    return answer


def _read(model: type[BaseModel] | None, values: Mapping[str, Any]) -> BaseModel | None:
    """Return the values as the model reads them. Raises `BadParameter`."""
    try:
        return None if model is None else model.model_validate(values)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False)[0]
        place_of = ".".join(map(str, fault["loc"])).replace("_", "-")
        raise typer.BadParameter(f"{place_of}: {fault['msg']}.") from exc
