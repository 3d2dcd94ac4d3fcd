"""Makes, lists and revokes the API keys of HTTP clients: `toolfleet keys`."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from toolfleet_cli.commands.completion import complete_keys
from toolfleet_cli.console import ago, change_each, no_such_key, note, say, say_json, show_list, until
from toolfleet_cli.remote import Gateway, JsonOption, ask, over_fleet
from toolfleet_cli.resources import keys
from toolfleet_registry.access import ApiKey, KeyDraft, Role, read_key_text
from toolfleet_registry.contracts import Level
from toolfleet_registry.contracts.names import named_modules
from toolfleet_registry.system import fleet_clock

app = typer.Typer(no_args_is_help=True)

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,6})([mhdw])")


UserOption = Annotated[str, typer.Option("--user", metavar="ID", help="The user in whose name it calls.")]
PermissionOption = Annotated[Level, typer.Option("--permission", help="What it may call.")]
ModulesOption = Annotated[
    str | None,
    typer.Option(
        "--modules",
        metavar="A,B",
        help="It reaches these modules only; * is all.",
        show_default="all that the permission allows",
    ),
]
AgentOption = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="Its calls are this agent's, and what its profile leaves."),
]
RoleOption = Annotated[Role, typer.Option("--role", help="What it may do as an operator.")]
ExpiresOption = Annotated[str, typer.Option("--expires", metavar="WHEN", help="As in 30d, 12h, 2027-01-31 or never.")]
OthersOption = Annotated[bool, typer.Option("--acts-for-others", help="It may call in the name of other users.")]
RateOption = Annotated[
    float | None,
    typer.Option("--requests-per-second", metavar="N", help="How many requests it may send in a second."),
]
StreamsOption = Annotated[
    int | None, typer.Option("--streams", metavar="N", help="How many event streams it may have open at once.")
]
DescriptionOption = Annotated[str, typer.Option("--description", metavar="TEXT", help="What it is for.")]


@app.command()
@over_fleet
def create(
    *,
    user: UserOption,
    permission: PermissionOption = "guest",
    modules: ModulesOption = None,
    agent: AgentOption = None,
    role: RoleOption = "none",
    expires: ExpiresOption = "90d",
    acts_for_others: OthersOption = False,
    requests_per_second: RateOption = None,
    streams: StreamsOption = None,
    description: DescriptionOption = "",
    gateway: Gateway | None = None,
    by: str | None = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key, and print it: this once, for only its digest is kept."""
    draft = _draft(
        user_id=user,
        permission=permission,
        allowed_modules=named_modules(modules),
        agent=agent,
        role=role,
        expires_at=_moment(expires),
        acts_for_others=acts_for_others,
        requests_per_second=requests_per_second,
        streams=streams,
        description=description,
    )
    made = ask(keys.create_key, gateway, body=draft, by=by)
    if as_json:
        say_json({"key": made.text, **_as_json(made.key)})
        return
    say(made.text)
    note(f"It is shown this once. `toolfleet keys revoke {made.key.id}` ends it.")


@app.command("list")
@over_fleet
def list_(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """List all keys, also those that have expired, the oldest first. None of them is shown: only their digests are kept."""
    show_list(
        ask(keys.list_keys, gateway).keys,
        "KEY,USER,PERMISSION,MODULES,ROLE,EXPIRES,USED,DESCRIPTION",
        _row,
        as_json=as_json,
        none="There are no API keys: `toolfleet keys create` makes one.",
        to_json=lambda one: {**_as_json(one.key), "last_used_at": _iso(one.last_used_at)},
    )


def _row(one: "keys.ShownKey") -> tuple[object, ...]:
    key, used = one.key, "never" if one.last_used_at is None else f"{ago(one.last_used_at)} ago"
    user = f"{key.user_id} and others" if key.acts_for_others else key.user_id
    user = user if key.agent is None else f"{user} as {key.agent}"
    return key.id, user, key.permission, _modules(key), key.role, _expiry(key), used, key.description


@app.command()
@over_fleet
def revoke(
    key_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="As `toolfleet keys list` shows it.", autocompletion=complete_keys),
    ],
    *,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Let keys count for nothing, within two seconds everywhere. Exit code 1 if one is not there; the others are revoked all the same."""
    # A whole key is taken for its id: a user who has found one has nothing else.
    wanted = [read.id if (read := read_key_text(text)) else text for text in key_ids]

    def one(key_id: str) -> None:
        ask(keys.revoke_key, gateway, key_id, by=by)

    change_each(wanted, one, done="Revoked", absent=no_such_key)


def _draft(**fields: Any) -> KeyDraft:
    """Make a draft. Raises `BadParameter`."""
    try:
        return KeyDraft(**fields)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        option = {"user_id": "user", "allowed_modules": "modules", "expires_at": "expires"}.get(
            name := str(error["loc"][0]), name
        )
        reason = error["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{reason}.", param_hint=f"--{option.replace('_', '-')}") from exc


def _moment(text: str) -> float | None:
    """Return the time in seconds since the epoch; a date is its first moment, in UTC. Raises `BadParameter`."""
    if text == "never":
        return None
    if match := _DURATION.fullmatch(text):
        return fleet_clock.now() + int(match[1]) * _UNITS[match[2]]
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text[:80]!r} is no time: 30d, 12h, 45m, 2w, a date such as 2027-01-31, or never.", param_hint="--expires"
        ) from None


def _modules(key: ApiKey) -> str:
    if key.allowed_modules is None:
        return "-"
    return "*" if key.allowed_modules == "*" else ", ".join(sorted(key.allowed_modules)) or "none"


def _expiry(key: ApiKey) -> str:
    if key.expires_at is None:
        return "never"
    return "expired" if key.is_expired(fleet_clock.now()) else f"in {until(key.expires_at)}"


def _as_json(key: ApiKey) -> dict[str, Any]:
    modules = key.allowed_modules
    return {
        **key.model_dump(mode="json", exclude={"allowed_modules", "expires_at", "created_at"}),
        "allowed_modules": sorted(modules) if isinstance(modules, frozenset) else modules,
        "expires_at": _iso(key.expires_at),
        "created_at": _iso(key.created_at),
    }


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
