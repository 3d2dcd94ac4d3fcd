"""Gives commands the options for the fleet they ask, and for the author of their changes."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias, get_type_hints

import typer

from toolfleet_cli.console.output import fail
from toolfleet_cli.remote.gateway import KEY_VARIABLE, URL_VARIABLE, Gateway, gateway_of
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.policy.call_faults import LONGEST

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


def over_fleet(command: Command) -> Command:
    """The command, with `--url`, `--host` and `--port` for its parameter `gateway`, and with `--as` for `by`, if it has one.

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
