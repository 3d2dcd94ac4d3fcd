"""Lists, shows, stores, rolls back and removes the profiles of agents, which it reads out of files: `toolfleet agents`."""

import json
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from toolfleet_cli.commands.completion import complete_agents
from toolfleet_cli.console import (
    add_row,
    fail,
    note,
    say,
    say_json,
    show_rows,
    show_table,
    table,
)
from toolfleet_cli.remote import Gateway, JsonOption, ask, over_fleet
from toolfleet_cli.resources import agents
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.config.setting_sources import line_of
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_registry.agents.stored_profiles import ProfileVersion

app = typer.Typer(no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_agents)]

_TABLE = "agents"
_YAML = (".yaml", ".yml")


@app.command("list")
@over_fleet
def list_(*, gateway: Gateway | None = None, as_json: JsonOption = False) -> None:
    """List the agents that have a profile, in the settings or in the registry."""
    found = ask(agents.list_agents, gateway).agents
    if as_json:
        say_json(found)
        return
    if not found:
        note("There are no agents: `toolfleet agents put NAME` stores what toolfleet.toml says of one.")
        return
    shown = table("AGENT", "MODE", "PERMISSION", "MODULES", "TOOLS", "MIDDLEWARE", "WHERE")
    for one in found:
        if one.fault is not None:
            add_row(shown, one.name, "-", "-", "-", "-", "-", f"counts for nothing: {one.fault}")
            continue
        modes = ", ".join(dict.fromkeys(each.profile.mode for each in one.profiles))
        tools = " and ".join(_selectors(each) for each in one.tools) or "all"
        names = ", ".join(str(each.spec["name"]) for each in one.middleware) or "-"
        where = ", ".join(each.place for each in one.profiles)
        add_row(shown, one.name, modes, one.permission_at_most or "-", _modules(one), tools, names, where)
    show_table(shown)


@app.command()
@over_fleet
def show(
    name: NameArgument,
    *,
    versions: Annotated[
        bool, typer.Option("--versions", help="Show its last 20 profiles in the registry instead, the latest first.")
    ] = False,
    gateway: Gateway | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an agent may do at most: what settings and registry say together, and which of them says it."""
    if versions:
        _show_versions(name, gateway, as_json=as_json)
        return
    one = ask(agents.get_agent, gateway, name)
    if as_json:
        say_json(one)
        return
    if one.fault is not None:
        note(f"Agent {one.name} may do nothing: {one.fault}.", style="red")
    else:
        say(f"{one.name}: permission {one.permission_at_most} at most, modules {_modules(one)}")
    shown = table("WHAT", "SAYS", "WHERE")
    for placed in one.profiles:
        for what, words in _sayings(placed):
            add_row(shown, what, words, placed.place)
    show_table(shown)
    for said in one.notes:
        note(said)


@app.command()
@over_fleet
def put(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Or as the file says.", autocompletion=complete_agents)
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Of this TOML, YAML or JSON file.", show_default=False)
    ] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Store a profile in the registry: what this folder's toolfleet.toml says of the agent, or a file. It holds at once."""
    if file is not None:
        name, profile = read_profile_file(file, name)
    elif name is not None:
        profile = _configured(name)
    else:
        raise typer.BadParameter("say the agent's NAME, or --file with a file that has one.", param_hint="NAME")
    stored = ask(agents.put_agent, gateway, name, body=profile, by=by)
    say(f"{name}: version {stored.version} is in force.")
    for said in stored.notes or ():
        note(said)


@app.command()
@over_fleet
def rollback(
    name: NameArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=1, help="As `toolfleet agents show --versions` shows it.")
    ],
    *,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Put an earlier version of a profile again, as a new one; also of one that was removed."""
    made = ask(agents.roll_back_agent, gateway, name, body={"version": version}, by=by)
    say(f"{name}: version {made.version} is in force, which is version {version} again.")


@app.command()
@over_fleet
def remove(name: NameArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Remove a profile from the registry. An agent that no settings know either may do nothing from then on."""
    ask(agents.remove_agent, gateway, name, by=by)
    say(f"{name}: the registry has no profile of it any more.")


def _show_versions(name: str, gateway: Gateway | None, *, as_json: bool) -> None:
    found = ask(agents.list_agent_versions, gateway, name).versions
    if as_json:
        say_json(found)
        return
    show_rows("VERSION,STORED,BY,WHAT", found, lambda one: _version_row(one, is_last=one is found[0]))


def _configured(name: str) -> AgentProfile:
    agents = load_settings().agents
    if name not in agents:
        there = f"there are {', '.join(agents)}" if agents else "there are none"
        fail(f"The settings here have no agent {name!r}; {there}. Write [agents.{name}] into toolfleet.toml.", code=1)
    return agents[name]


def _version_row(one: "ProfileVersion", *, is_last: bool) -> tuple[object, ...]:
    again = "" if one.rolled_back_from is None else f"version {one.rolled_back_from} again"
    what = ", ".join(filter(None, ("in force" if is_last else "", again))) or "-"
    stored = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="seconds")
    return one.version, stored, one.by, "removed" if one.profile is None else what


def _modules(one: "agents.AgentOverview") -> str:
    return ", ".join(one.allowed_modules) or "none" if isinstance(one.allowed_modules, list) else "*"


def _selectors(selectors: tuple[str, ...]) -> str:
    return ", ".join(selectors) or "none"


def _sayings(placed: "agents.PlacedProfile") -> list[tuple[str, str]]:
    """Return a profile's rules, one a line."""
    profile = placed.profile
    modules = profile.allowed_modules
    return [
        ("mode", profile.mode),
        *([("description", profile.description)] if profile.description else []),
        *([("tools", _selectors(profile.tools))] if profile.tools is not None else []),
        *([("allowed_modules", ", ".join(sorted(modules)) or "none")] if isinstance(modules, frozenset) else []),
        *([("permission_at_most", profile.permission_at_most)] if profile.permission_at_most != "owner" else []),
        *(("middleware", _written(spec.model_dump(mode="json", exclude_defaults=True))) for spec in profile.middleware),
        *([("stored by", placed.by)] if placed.by else []),
    ]


def _written(spec: dict[str, object]) -> str:
    name, *rest = str(spec.pop("name")), *(f"{key}={value!r}" for key, value in spec.items())
    return f"{name}({', '.join(rest)})" if rest else name


def read_profile_file(path: Path, name: str | None) -> tuple[str, AgentProfile]:
    """Return the agent's name, and the profile that the file is, or that it has of `name` in its table `agents`.

    A file that is a profile may say the `name`. Raises `BadParameter`, or `SettingsError` for a wrong one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = _document_of(path, text)
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise typer.BadParameter(f"{path}: {reason}.", param_hint="--file") from exc
    name, document = _named(document, name)
    found, where = _profile_in(document, name)
    try:
        return name, AgentProfile.model_validate(found)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        said = ".".join(str(part) for part in error["loc"])
        reason = "there is no such field" if error["type"] == "extra_forbidden" else error["msg"]
        place = _place(path, text, (*where, *error["loc"]))
        raise SettingsError(f"{place}{said and f' at {said}'}: {reason.removeprefix('Value error, ')}.") from exc


def _document_of(path: Path, text: str) -> Any:
    """Parse a profile's file. Raises `ValueError`."""
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix not in _YAML:
        return tomllib.loads(text)
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs pyyaml: pip install 'toolfleet[hosts]'") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        raise ValueError(f"no YAML{'' if mark is None else f' (line {mark.line + 1})'}") from exc


def _named(document: Any, name: str | None) -> tuple[str, Any]:
    """Return the agent's name, and the document without it."""
    said = document.get("name") if isinstance(document, dict) and _TABLE not in document else None
    if said is not None and name not in {None, said}:
        raise typer.BadParameter(f"it is the profile of {said!r}, and not of {name!r}.", param_hint="--file")
    if (name := name or said) is None:
        raise typer.BadParameter("say the agent's NAME, or `name` in the file.", param_hint="NAME")
    return str(name), document if said is None else {key: value for key, value in document.items() if key != "name"}


def _profile_in(document: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the profile, and where in the document it stands."""
    table = document.get(_TABLE) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        return document, ()
    if name not in table:
        there = ", ".join(map(str, table)) or "none"
        raise typer.BadParameter(f"it has no agent {name!r}; there are: {there}.", param_hint="--file")
    return table[name], (_TABLE, name)


def _place(path: Path, text: str, at: tuple[int | str, ...]) -> str:
    find = {".json": None, **dict.fromkeys(_YAML, _yaml_line)}.get(path.suffix, line_of)
    lines = () if find is None else (find(at[:length], text) for length in range(len(at), 0, -1))
    line = next((one for one in lines if one is not None), None)
    return f"{path}:" if line is None else f"{path}, line {line}:"


def _yaml_line(at: Sequence[str | int], text: str) -> int | None:
    import yaml

    node, line = yaml.compose(text, yaml.SafeLoader), None
    for each in at:
        if isinstance(node, yaml.MappingNode):
            key, node = next((pair for pair in node.value if pair[0].value == each), (None, None))
        elif isinstance(node, yaml.SequenceNode) and isinstance(each, int):
            key = node = node.value[each]
        else:
            key = None
        if key is None:
            return None
        line = key.start_mark.line + 1
    return line
