"""Users and personas of the core: what an operator says of them counts with the next message of a core that runs."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from agent_core.cli import app
from agent_core.conversations import open_engine
from support.core.core_bot import Bot, Open
from support.module_server import ModuleServer
from support.modules.example_modules import EXAMPLES

Run = Callable[..., Result]
NEEDS_ADMIN, NEEDS_NOTHING = "owls.admin_only", "owls.echo"


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """That of the cores that `opened` opens."""
    return f"sqlite:///{tmp_path / 'agent.db'}"


@pytest.fixture
def cli(database_url: str) -> Run:
    """Runs the operator's command, here: `python -m agent_core.cli` takes a second to start."""

    def run(*words: str, **env: str) -> Result:
        return CliRunner().invoke(app, words, env={"AGENT_DATABASE_URL": database_url, **env})

    return run


def offered(bot: Bot) -> list[list[str]]:
    """The tools that the model was offered, each time that it was asked."""
    names: list[list[str]] = bot.app.state.core.turns.model.offered
    return names


def change(database_url: str, statement: str) -> None:
    """What somebody does to the tables by hand."""
    engine = open_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


async def test_a_promotion_counts_with_the_next_message(opened: Open, cli: Run) -> None:
    """Up and down, in a core that runs, and only for that user."""
    async with opened("hi", "yes", "no", "hi") as bot:
        await bot.say()
        up = cli("user", "promote", "ada", "admin")
        await bot.say()
        down = cli("user", "promote", "ada", "guest", AGENT_PERMISSION="owner")
        await bot.say()
        await bot.http.post("/message", json={"user_id": "bob", "text": "hello"})
        seen = [(NEEDS_ADMIN in tools, NEEDS_NOTHING in tools) for tools in offered(bot)]

    assert (up.stdout, up.stderr) == ("ada is admin from the next message on.\n", "")
    assert (down.exit_code, seen) == (0, [(False, True), (True, True), (False, False), (False, True)])


async def test_a_persona_reaches_its_modules_alone(opened: Open, cli: Run) -> None:
    """From the message on that names it, until another is named; a persona of all modules reaches all."""
    assert cli("persona", "set", "helper", "cats").stdout == "helper reaches cats from the next message on.\n"
    assert cli("persona", "set", "owner", "--all").exit_code == 0
    async with opened(*["hi"] * 6) as bot:
        for persona in (None, "helper", None, "owner"):
            assert (await bot.say(persona=persona)).status_code == 200
        assert cli("persona", "set", "owner", "cats", "owls").exit_code == 0
        await bot.say()
        assert cli("persona", "set", "owner", "cats").exit_code == 0
        await bot.say()
        seen = [NEEDS_NOTHING in tools for tools in offered(bot)]
    assert seen == [True, False, False, True, True, False]


async def test_a_persona_holds_for_calls_as_well(opened: Open, cli: Run, owls: ModuleServer) -> None:
    """What a model calls all the same is refused by the fleet."""
    cli("persona", "set", "helper", "cats")
    async with opened([("owls.nap_once", {"seconds": 0})], "I see") as bot:
        await bot.say(persona="helper")
        told = bot.app.state.core.turns.model.asked[1][-1]["content"]
    assert "Module 'owls' is not among the caller's modules" in told
    assert owls.calls("nap_once") == []


async def test_an_unknown_persona_is_refused(opened: Open, cli: Run) -> None:
    """In one sentence, before anything is written down; then the conversation is what it was."""
    cli("persona", "set", "helper", "cats")
    async with opened("hi", "hi") as bot:
        conversation_id = (await bot.say(persona="helper")).json()["conversation_id"]
        refused = await bot.say(persona="Helper", files=[{"name": "a", "content_base64": ""}])
        await bot.say()
        said = await bot.said(conversation_id)
        seen = [NEEDS_NOTHING in tools for tools in offered(bot)]
    assert (refused.status_code, refused.json()["detail"]) == (422, "There is no persona 'Helper'.")
    assert [source for source, _ in said] == ["user", "model"] * 2
    assert seen == [False, False]


async def test_a_job_resumes_with_what_holds_by_then(opened: Open, cli: Run) -> None:
    """The permission that its user has now, and the conversation's persona, also in another process."""
    cli("persona", "set", "helper", "owls")
    cli("persona", "set", "none", "cats")
    async with opened("I begin", "hi") as bot:
        conversation_id = (await bot.say(platform="chat", persona="helper")).json()["conversation_id"]
        other = (await bot.say(platform="mail", persona="none")).json()["conversation_id"]
    cli("user", "promote", "ada", "admin")
    async with opened("done", "done") as bot:
        answers = [await bot.wake(each) for each in (conversation_id, other)]
        seen = [(NEEDS_ADMIN in tools, NEEDS_NOTHING in tools) for tools in offered(bot)]
    assert [answer.status_code for answer in answers] == [204, 204]
    assert seen == [(True, True), (False, False)]


async def test_a_message_that_comes_again_changes_no_persona(opened: Open, cli: Run) -> None:
    """It is answered as before; the conversation stays under the persona of a later message."""
    cli("persona", "set", "helper", "cats")
    cli("persona", "set", "owner", "--all")
    async with opened("one", "two", "three") as bot:
        first = await bot.say(message_id="m1", persona="helper")
        await bot.say(message_id="m2", persona="owner")
        again = await bot.say(message_id="m1", persona="helper")
        await bot.say(message_id="m3")
        seen = [NEEDS_NOTHING in tools for tools in offered(bot)]
    assert again.json() == first.json()
    assert seen == [False, True, True]


async def test_a_turn_that_was_cut_off_goes_on_under_its_own_persona(opened: Open, cli: Run) -> None:
    """The message that comes next is answered under the one that it names."""
    cli("persona", "set", "helper", "cats")
    cli("persona", "set", "owner", "--all")
    async with opened() as bot:
        assert (await bot.say(message_id="m1", persona="helper")).status_code == 503
    async with opened("one", "two") as bot:
        reply = await bot.say(message_id="m2", persona="owner")
        seen = [NEEDS_NOTHING in tools for tools in offered(bot)]
    assert reply.json()["text"] == "two"
    assert seen == [False, True]


async def test_settings_fill_an_empty_table(
    opened: Open, cli: Run, caplog: pytest.LogCaptureFixture, database_url: str
) -> None:
    """Later the table counts, and who is told otherwise by the settings is told so; it is filled again when it is empty."""
    async with opened("hi", permissions={"ada": "admin"}) as bot:
        await bot.say()
        assert NEEDS_ADMIN in offered(bot)[0]
    cli("user", "promote", "ada", "user")
    async with opened("hi", permissions={"ada": "admin"}) as bot:
        await bot.say()
        assert NEEDS_ADMIN not in offered(bot)[0]
    assert "AGENT_PERMISSIONS only fills an empty table; in it, others hold for ada" in caplog.text
    change(database_url, "DELETE FROM users")
    listed = cli("user", "list", AGENT_PERMISSIONS='{"ada": "owner"}')
    assert listed.stdout == "ada  owner\n"


async def test_a_guest_without_a_persona_reaches_what_guests_reach(opened: Open, cli: Run) -> None:
    """As everywhere in the fleet; a persona says otherwise."""
    cli("persona", "set", "zoo", "owls")
    async with opened("hi", "hi", permission="guest") as bot:
        await bot.say()
        await bot.say(persona="zoo")
        seen = [NEEDS_NOTHING in tools for tools in offered(bot)]
    assert seen == [False, True]


@pytest.mark.parametrize(
    "by_hand",
    [
        "DELETE FROM personas",
        "UPDATE personas SET allowed_modules = '{\"owls\": true}'",
        "UPDATE personas SET allowed_modules = '[1]'",
        "UPDATE users SET permission_level = 'root'",
    ],
)
async def test_what_stands_wrong_in_the_tables_gives_no_rights(
    opened: Open, cli: Run, database_url: str, by_hand: str
) -> None:
    """A persona that is gone or no list reaches nothing; an unknown level is a guest's."""
    cli("persona", "set", "helper", "owls")
    cli("user", "promote", "ada", "admin")
    async with opened("hi", "hi") as bot:
        await bot.say(persona="helper")
        change(database_url, by_hand)
        assert (await bot.say()).status_code == 200
        seen = [NEEDS_ADMIN in tools for tools in offered(bot)]
    assert seen == [True, False]


async def test_users_and_personas_are_listed(opened: Open, cli: Run) -> None:
    """Also users who have only spoken, with what they may do by default."""
    assert cli("user", "list").stdout == "There are no users yet.\n"
    assert cli("persona", "list").stdout == "There are no personas yet.\n"
    async with opened("hi", "hi") as bot:
        await bot.say()
        await bot.http.post("/message", json={"user_id": "b\x1b[2J", "text": "hello"})
    cli("user", "promote", "zoe", "owner")
    cli("persona", "set", "helper", "research", "knowledge", "research")
    cli("persona", "set", "owner", "--all")

    assert cli("user", "list").stdout.splitlines() == [
        "ada         user (AGENT_PERMISSION)",
        r"'b\x1b[2J'  user (AGENT_PERMISSION)",
        "zoe         owner",
    ]
    assert cli("persona", "list").stdout == "helper  knowledge, research\nowner   all modules\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["user", "promote", "ada", "boss"], "The permission must be guest, user, admin or owner, not 'boss'."),
        (["user", "promote", " ", "user"], "A user id has 1 to 200 characters."),
        (["persona", "set", "x" * 201, "owls"], "A persona's name has 1 to 200 characters."),
        (["persona", "set", "helper"], "Name the modules that the persona reaches, or say --all."),
        (["persona", "set", "helper", "owls", "--all"], "Name the modules that the persona reaches, or say --all."),
        (["persona", "set", "helper", "*"], "'*' is no name of a module."),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Run, words: list[str], sentence: str) -> None:
    """In one sentence, and nothing is written."""
    done = cli(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"{sentence}\n")
    assert cli("persona", "list").stdout == "There are no personas yet.\n"
    assert cli("user", "list").stdout == "There are no users yet.\n"


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            {"AGENT_DATABASE_URL": "postgresql+pg8000://ada:s3cret@127.0.0.1:1/x"},
            "The database of AGENT_DATABASE_URL cannot be used: InterfaceError.",
        ),
        ({"AGENT_DATABASE_URL": "s3cret"}, "The database of AGENT_DATABASE_URL cannot be used: ArgumentError."),
        ({"AGENT_PERMISSION": "boss"}, "AGENT_PERMISSION: Input should be 'guest', 'user', 'admin' or 'owner'."),
    ],
)
def test_settings_that_cannot_be_right_are_one_sentence(cli: Run, env: dict[str, str], sentence: str) -> None:
    """Without a password, and without a traceback."""
    done = cli("user", "list", **env)
    assert done.exit_code != 0
    assert done.stderr == f"{sentence}\n"


def test_the_session_in_the_guide_is_what_happens(cli: Run) -> None:
    """One after the other, in an empty database: what is shown is what is said."""
    guide = (EXAMPLES / "agent_core" / "README.md").read_text()
    (session,) = re.findall(r"```console\n(\$ [^\n]* -m agent_core\.cli user promote.*?)```", guide, re.DOTALL)
    steps = re.findall(r"\$ \S+ -m agent_core\.cli ([^\n]+)\n([^$]*)", session)
    assert len(steps) == session.count("$ ")
    assert [cli(*words.split()).stdout for words, _ in steps] == [said for _, said in steps]


def test_the_command_is_a_program(database_url: str) -> None:
    """As an operator starts it, beside the core; a fault is a sentence and a status."""
    command = [sys.executable, "-m", "agent_core.cli", "user", "promote", "ada", "boss"]
    env = {**os.environ, "AGENT_DATABASE_URL": database_url}
    done = subprocess.run(command, cwd=EXAMPLES, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "The permission must be guest, user, admin or owner, not 'boss'.\n"
