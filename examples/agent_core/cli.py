"""`python -m agent_core.cli`: what users may do, and which modules personas reach. A core that runs heeds it with the next message."""

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn, TypeVar, cast

import typer
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from agent_core.conversations import open_engine
from agent_core.people import People
from agent_core.settings import AgentSettings
from agent_core.tables import METADATA
from toolfleet_registry.contracts import Level
from toolfleet_registry.contracts.names import is_module_name
from toolfleet_registry.permissions import Modules, level_fault

_MOST_CHARS = 200  # of a name, as in messages

app = typer.Typer(help="Users and personas of an agent's core.", no_args_is_help=True, add_completion=False)
user_app = typer.Typer(help="What users may do.", no_args_is_help=True)
persona_app = typer.Typer(help="Which modules personas reach.", no_args_is_help=True)
app.add_typer(user_app, name="user")
app.add_typer(persona_app, name="persona")

T = TypeVar("T")


@user_app.command()
def promote(
    user_id: Annotated[str, typer.Argument(metavar="ID", help="As bots send it.")],
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="guest, user, admin or owner.")],
) -> None:
    """Give a user a permission, higher or lower than the one before."""
    if fault := level_fault(level):
        _fail(f"The {fault}.")
    _check_name(user_id, "user id")
    _with_people(lambda people: people.promote(user_id, cast("Level", level)))
    _say(f"{_shown(user_id)} is {level} from the next message on.")


@user_app.command("list")
def list_users() -> None:
    """List the users with their permissions: those in the table, and who else has ever said something."""
    settings, (known, speakers) = _settings(), _with_people(lambda people: (people.users(), people.speakers()))
    others = {user_id: f"{settings.permission} (AGENT_PERMISSION)" for user_id in speakers if user_id not in known}
    _say_table(sorted({**known, **others}.items()), "There are no users yet.")


@persona_app.command("set")
def set_persona(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As messages name it.")],
    modules: Annotated[list[str] | None, typer.Argument(metavar="MODULE…", help="The modules that it reaches.")] = None,
    *,
    all_modules: Annotated[bool, typer.Option("--all", help="It reaches all modules.")] = False,
) -> None:
    """Make a persona, or change which modules it reaches."""
    _check_name(name, "persona's name")
    if all_modules == bool(modules):
        _fail("Name the modules that the persona reaches, or say --all.")
    for module in modules or ():
        if not is_module_name(module):
            _fail(f"{module!r} is no name of a module.")
    wanted = None if all_modules else sorted(set(modules or ()))
    _with_people(lambda people: people.set_persona(name, wanted))
    reached: Modules = "*" if wanted is None else frozenset(wanted)
    _say(f"{_shown(name)} reaches {_listed(reached)} from the next message on.")


@persona_app.command("list")
def list_personas() -> None:
    """List the personas with their modules."""
    personas = _with_people(lambda people: people.personas())
    rows = [(name, _listed(modules)) for name, modules in personas.items()]
    _say_table(rows, "There are no personas yet.")


def _with_people(work: Callable[[People], T]) -> T:
    """Open the core's database, made as the core makes it, for whoever comes first."""
    settings = _settings()
    try:
        engine = open_engine(settings.database_url)
        try:
            METADATA.create_all(engine)
            people = People(engine, settings)
            people.fill()
            return work(people)
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError, OSError) as exc:  # not its text: a URL may hold a password
        _fail(f"The database of AGENT_DATABASE_URL cannot be used: {type(exc).__name__}.", 1)


def _settings() -> AgentSettings:
    try:
        return AgentSettings()
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "_".join(str(part) for part in fault["loc"][:1]).upper()
        _fail(f"AGENT_{place}: {fault['msg']}.")


def _check_name(name: str, what: str) -> None:
    if not name.strip() or len(name) > _MOST_CHARS:
        _fail(f"A {what} has 1 to {_MOST_CHARS} characters.")


def _listed(modules: Modules) -> str:
    return "all modules" if modules == "*" else ", ".join(sorted(modules)) or "no module"


def _say_table(rows: list[tuple[str, str]], nothing: str) -> None:
    width = max((len(_shown(name)) for name, _ in rows), default=0)
    for name, what in rows:
        _say(f"{_shown(name):{width}}  {what}")
    if not rows:
        _say(nothing)


def _shown(name: str) -> str:
    """What a bot may have sent, without what would move a terminal's cursor."""
    return name if name.isprintable() else ascii(name)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _fail(sentence: str, code: int = 2) -> NoReturn:
    sys.stderr.write(f"{sentence}\n")
    raise typer.Exit(code)


if __name__ == "__main__":
    app(prog_name="python -m agent_core.cli")
