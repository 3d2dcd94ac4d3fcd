"""Asks the fleet: in this process, which reaches its stores, or at a gateway over HTTP.

`ask` asks for the operations of operators' resources, which are declared in `toolfleet_tasks.resources`. `over_fleet` gives a
command the options that choose the gateway. The options that several commands have are declared here, too.
"""

import asyncio
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar, cast, get_type_hints
from urllib.parse import quote, urlsplit

import typer
from pydantic import BaseModel, ValidationError

from toolfleet_cli.console import fail, note, progress
from toolfleet_cli.resources import tools
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT
from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.contracts import Caller, Level, ToolDefinition
from toolfleet_registry.contracts.names import named_modules
from toolfleet_registry.errors import FleetError, FleetUnavailable, NoSuchEntry, OperationRefused
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet import ToolFleet
    from toolfleet_tasks.resources.operation import ResourceOperation


R = TypeVar("R")

URL_VARIABLE: Final = "TOOLFLEET_GATEWAY_URL"
KEY_VARIABLE: Final = "TOOLFLEET_GATEWAY_KEY"

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_AWAY = frozenset({"fleet_unavailable", "auth_unavailable"})
_NO_KEY, _NOT_FOUND = 401, 404
_LOST_PARTS = frozenset({"", ".", ".."})  # of a path: clients and proxies take them away, and ask for another thing
_CONNECT_SECONDS, _SECONDS = 5.0, 60.0

Command: TypeAlias = Callable[..., None]

_URL_HELP = (
    f"Ask this gateway and not Redis, with the key in {KEY_VARIABLE}, or on this machine that of `toolfleet up` here; "
    f"else that of {URL_VARIABLE}, if both are set."
)
_GATEWAY: Final[dict[str, Any]] = {
    "gateway_url": Annotated[str | None, typer.Option("--url", metavar="URL", help=_URL_HELP)],
    "gateway_host": Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="Ask the gateway there and not Redis.")
    ],
    "gateway_port": Annotated[
        int | None, typer.Option("--port", metavar="PORT", min=1, max=65535, help=f"Its port; [{DEFAULT_PORT}].")
    ],
}
_BY: Final[dict[str, Any]] = {
    "as_user": Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Who the audit says has done it; else this machine's user."),
    ]
}


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LimitOption = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Show at most so many.")]
OffsetOption = Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Leave out the first so many.")]

UserOption = Annotated[str | None, typer.Option("--user", metavar="ID", help="Act for this user.")]
PermissionOption = Annotated[Level, typer.Option("--permission", help="Act with this permission.")]
ModulesOption = Annotated[
    str | None,
    typer.Option(
        "--modules",
        metavar="A,B",
        help="Use these modules only; * is all. Else all, or for a guest those of TOOLFLEET_DEFAULT_GUEST_MODULES.",
    ),
]

ConversationOption = Annotated[
    str | None, typer.Option("--conversation-id", metavar="ID", help="The conversation that the call belongs to.")
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run-id", metavar="ID", help="The turn of an agent that it is part of, which its profile may limit."
    ),
]

AgentOption = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Act as this agent, by its profile.")]


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway, and the key with which it is asked. Each method raises `FleetError` with a sentence, or ends the command with it."""

    url: str
    key: str = field(repr=False)

    def ask(self, method: str, path: str, *, seconds: float = _SECONDS, about: str = "", **options: Any) -> Any:
        """Return the answer as JSON, or `None` without a body. A problem raises an error that names the subject `about`."""
        import httpx

        own = {"authorization": f"Bearer {self.key}"} if self.key else {}
        headers = {**options.pop("headers", {}), **own}
        if not _LOST_PARTS.isdisjoint(path.split("/")[1:]):
            _refuse(_NOT_FOUND, {"detail": "There is nothing of that name."}, about, has_key=bool(self.key))
        timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS)
        try:
            with httpx.Client(base_url=self.url, timeout=timeout, trust_env=False) as client:
                answer = client.request(method, path, headers=headers, **options)
        except httpx.TransportError as exc:
            parts = urlsplit(self.url)
            where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
            if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout):
                raise FleetUnavailable(f"cannot connect to {where}") from exc
            raise FleetUnavailable(f"{where} does not answer: {exc or type(exc).__name__}") from exc
        try:
            value = answer.json() if answer.content else None
        except ValueError as exc:
            raise FleetError(f"{self.url} is no gateway: it has answered {answer.status_code} without JSON.") from exc
        if answer.is_error:
            _refuse(answer.status_code, value, about, has_key=bool(self.key))
        return value


def gateway_of(url: str | None, host: str | None = None, port: int | None = None) -> Gateway | None:
    """Return the gateway to ask, or `None` for Redis. Raises `BadParameter` for an invalid URL."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if url is not None and (host is not None or port is not None):
        raise typer.BadParameter("say either --url, or --host and --port.")
    if host is not None or port is not None:
        name = host or "127.0.0.1"
        url = f"http://{f'[{name}]' if ':' in name else name}:{port or DEFAULT_PORT}"
    elif url is None and key:
        url = os.environ.get(URL_VARIABLE, "").strip() or None
    if url is None:
        return None
    if not is_http_url(url):
        raise typer.BadParameter(f"{url[:200]!r} is no http:// or https:// URL with a host.", param_hint="--url")
    return Gateway(url.rstrip("/"), key or _kept_key(url))


def _kept_key(url: str) -> str:
    """Return the key that `toolfleet up` keeps here or in a folder above; none for another machine."""
    if urlsplit(url).hostname not in _LOOPBACK:
        return ""
    kept = (folder / FOLDER / "gateway-key" for folder in (Path.cwd(), *Path.cwd().parents))
    found = next((path for path in kept if os.access(path, os.R_OK)), None)
    return "" if found is None else found.read_text(encoding="ascii", errors="replace").strip()


def _refuse(status: int, problem: Any, about: str, *, has_key: bool) -> NoReturn:
    """Raise the error that a problem describes."""
    if status == _NO_KEY and not has_key:
        fail(f"The gateway needs a key: set {KEY_VARIABLE}.", code=1)
    known = problem if isinstance(problem, dict) else {}
    if known.get("error_code") in _AWAY:
        raise FleetUnavailable(f"At the gateway: {known.get('detail')}")
    words = [str(known.get("detail") or f"The gateway has answered {status}."), str(known.get("hint") or "")]
    named = [f"{about}:"] if about and status == _NOT_FOUND else []
    text = " ".join(filter(None, [*named, *words]))
    if status == _NOT_FOUND:
        raise NoSuchEntry(text)
    refusal = OperationRefused(text)
    refusal.error_code = str(known.get("error_code") or refusal.error_code)
    raise refusal


def ask(
    operation: "ResourceOperation[Any, Any, R]",
    gateway: Gateway | None,
    *path: str,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | BaseModel | None = None,
    by: str | None = None,
    caller: Caller | None = None,
    seconds: float = _SECONDS,
    settings: Settings | None = None,
) -> R:
    """Ask for an operation and return its answer. For commands that are `over_fleet`.

    Args:
        operation: The operation.
        gateway: The gateway to ask; with `None` the operation runs in this process, with the settings that it finds.
        *path: The values of the operation's path parameters, in their order.
        query: Its query; fields that are `None` are left out.
        body: Its body.
        by: The user's name in the audit if no gateway is asked; by default the name on this machine.
        caller: The caller that it is asked for, if no gateway is asked: that goes by its key.
        seconds: How long a gateway may take.
        settings: The settings of this process if no gateway is asked; by default they are read. A command that asks
            repeatedly passes them: the fleet may end meanwhile, and its run file with it.

    Raises:
        OperationRefused: It cannot be done. A command that does not handle it ends with its sentence.
        FleetUnavailable: Redis, or the gateway, does not answer.
        typer.BadParameter: The query or the body is invalid.

    """
    known = {name: value for name, value in (query or {}).items() if value is not None}
    parts = dict(zip(re.findall(r"{(\w+)}", operation.path), path, strict=True))
    if gateway is None:
        return _OPEN.get().ask(
            operation, parts, known, body, by=by, caller=caller, settings=settings or load_settings()
        )
    where = operation.path.format(**{name: quote(value, safe="") for name, value in parts.items()})
    options = dict[str, Any]()
    if body is not None:  # without fields at their defaults, which an older gateway may not know
        options["json"] = body.model_dump(mode="json", exclude_defaults=True) if isinstance(body, BaseModel) else body
    found = gateway.ask(operation.method, where, seconds=seconds, params=known, **options)
    return cast("R", None if operation.answer is None else operation.answer.model_validate(found))


class _Here:
    """The resources of a command that runs in this process: an event loop, and the fleet's client once an operation needs it."""

    def __init__(self) -> None:
        self._loop, self._open = asyncio.Runner(), AsyncExitStack()
        self._fleet: ToolFleet | None = None

    def __enter__(self) -> None:
        self._token = _OPEN.set(self)

    def __exit__(self, *_: object) -> None:
        _OPEN.reset(self._token)
        with self._loop:
            self._loop.run(self._open.aclose())

    def ask(
        self,
        operation: "ResourceOperation[Any, Any, R]",
        path: Mapping[str, str],
        query: Mapping[str, Any],
        body: Mapping[str, Any] | BaseModel | None,
        *,
        by: str | None,
        caller: Caller | None,
        settings: Settings,
    ) -> R:
        """Run an operation, with the rights of one who reaches the stores anyway."""
        from toolfleet_registry.access import COMMAND_LINE
        from toolfleet_tasks.operations.change_trail import Actor
        from toolfleet_tasks.resources.operation import FleetOperator, OperationRequest

        async def fleet() -> "ToolFleet":
            from toolfleet import ToolFleet  # takes a second to load, and few operations make calls

            if self._fleet is None:
                self._fleet = await self._open.enter_async_context(ToolFleet(settings=settings))
            return self._fleet

        async def run() -> R:
            async with progress("Waiting for the fleet"):
                return await operation.run(asked)

        asked = OperationRequest(
            settings=settings,
            operator=FleetOperator(Actor.at_command_line(by), COMMAND_LINE, caller=caller, may_reach_private=True),
            fleet=fleet,
            body=body if isinstance(body, BaseModel) else _validated(operation.body, body or {}),
            query=_validated(operation.query, query),
            path=path,
        )
        answer = self._loop.run(run())
        if asked.audit_missed:  # what was changed may be in a database
            note("The audit may have no line of this: there is no Redis that answers.", style="dim")
        return answer


_OPEN: ContextVar[_Here] = ContextVar("toolfleet_here")


def _validated(model: type[BaseModel] | None, values: Mapping[str, Any]) -> BaseModel | None:
    """Return the values as the model reads them. Raises `BadParameter`."""
    try:
        return None if model is None else model.model_validate(values)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False)[0]
        place_of = ".".join(map(str, fault["loc"])).replace("_", "-")
        raise typer.BadParameter(f"{place_of}: {fault['msg']}.") from exc


def over_fleet(command: Command) -> Command:
    """Return the command, with `--url`, `--host` and `--port` for its parameter `gateway`, and with `--as` for `by`, if it has one.

    `gateway` is `None` where Redis is to be asked; `by` is `None` for this machine's user, and at a gateway, which goes by its key.
    A refused operation ends the command with its sentence and exit code 1.
    """
    hints, parameters = get_type_hints(command, include_extras=True), inspect.signature(command).parameters
    replaced = {"gateway": _GATEWAY, "by": _BY}
    made = list[inspect.Parameter]()
    for name, parameter in parameters.items():
        options = replaced.get(name)
        if options is None:
            made.append(parameter.replace(annotation=hints[name]))
        else:
            made += [
                inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for option, annotation in options.items()
            ]

    @functools.wraps(command)
    def run(**said: Any) -> None:
        said["gateway"] = gateway_of(*(said.pop(option) for option in _GATEWAY))
        if "by" in parameters:
            said["by"] = _checked(said.pop("as_user"), said["gateway"])
        try:
            with _Here():
                command(**said)
        except OperationRefused as exc:
            fail(" ".join(filter(None, (str(exc), exc.hint))), code=1)

    shown: Any = run
    shown.__signature__ = inspect.Signature(made)
    shown.__annotations__ = {each.name: each.annotation for each in made}
    return run


def _checked(name: str | None, gateway: Gateway | None) -> str | None:
    """Check the name. Raises `BadParameter`."""
    if name is not None and gateway is not None:
        raise typer.BadParameter("a gateway goes by its key: leave --as out.", param_hint="--as")
    if name is not None and not (0 < len(name) <= LONGEST and name.isprintable()):
        raise typer.BadParameter(f"a name has 1 to {LONGEST} printable characters.", param_hint="--as")
    return name


def caller_of(user: str | None, permission: Level, modules: str | None, agent: str | None = None) -> Caller:
    """Return the caller that the options describe: without `--modules` the same as `Caller` without `allowed_modules`."""
    said = {"user_id": user, "permission": permission, "agent": agent}
    return Caller.model_validate({**said, "allowed_modules": named_modules(modules)})


def caller_at(
    gateway: Gateway | None, user: str | None, permission: Level, modules: str | None, agent: str | None = None
) -> Caller | None:
    """Return the caller that the options describe; `None` at a gateway, which goes by its key. Raises `BadParameter` for options there."""
    if gateway is None:
        return caller_of(user, permission, modules, agent)
    if user is not None or permission != "owner" or modules is not None:
        raise typer.BadParameter("a gateway goes by its key: leave --user, --permission and --modules out.")
    if agent is not None:
        raise typer.BadParameter("a gateway lists the tools of its key: leave --agent out.", param_hint="--agent")
    return None


def refuse_unknown(caller: Caller, known: Collection[str]) -> None:
    """Raise `BadParameter` for modules of a caller that are not among the `known` ones: nothing would be found for a misspelt one."""
    named = caller.allowed_modules
    unknown = sorted(set(named) - set(known)) if isinstance(named, frozenset) else []
    if unknown:
        there = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise typer.BadParameter(
            f"there is no module {', '.join(map(repr, unknown))}; {there}.", param_hint="--modules"
        )


def tool_of(gateway: Gateway | None, name: str, caller: Caller | None = None) -> ToolDefinition | None:
    """Return the tool as the caller, or the key, sees it; `None` if it does not see it, and may still call it."""
    with suppress(NoSuchEntry):
        return ask(tools.get_tool, gateway, name, caller=caller)
    return None
