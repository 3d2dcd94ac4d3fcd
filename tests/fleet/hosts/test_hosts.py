"""Hosts in a whole fleet: folders of tools, MCP servers from the package index, and OpenAPI documents, with one table each.

What is saved there is called by agents, what is broken is shown, and secrets are nowhere.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from petstore import server as petstore
from support.command import call, run
from support.documents import ROOT, programs
from support.hosts.bird_service import bird_service, document, operation
from support.hosts.odd_server import Answer, OddServer, odd_http
from support.module_server import serve
from support.modules.example_modules import serving
from support.owls import make_module
from support.programs.fork_server import end, start
from support.servers import redis_snapshot
from support.up import Up, up
from support.waiting import wait_until_answered, wait_until_sync
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.settings import Settings

TOOL = '''
from toolfleet.sdk import tool

@tool(effect="read")
def {name}(day: int = 1) -> str:
    """{words}"""
    return f"{name} {{day}}"
'''

VALUE = "planted/Zq3.8817200934"
LEAKING = '''
import os, sys
from toolfleet.sdk import Context, ToolError, tool

@tool(secrets=["TOKEN"])
async def give(context: Context) -> dict[str, object]:
    """Give it away."""
    await context.progress(0.5, f"with {context.secrets['TOKEN']}")
    return {"token": context.secrets["TOKEN"]}

@tool(secrets=["TOKEN"])
def fail(context: Context) -> str:
    """Fail in words."""
    raise ToolError(f"refused: {context.secrets['TOKEN']}")

@tool(secrets=["TOKEN"], runs_in="process")
def shout(context: Context) -> str:
    """Print it, and break with it."""
    print(context.secrets["TOKEN"], file=sys.stderr, flush=True)
    raise KeyError(context.secrets["TOKEN"])
'''
TOML = """
[hosts.rooks]
folder = "birds/crows"
memory_mb = 3000
secrets = ["TOKEN"]

[secrets.TOKEN]
file = "token"

[hosts.odd]
url = "{odd}"

[hosts.finches]
document = "finches.json"
base = "{birds}"
auth = {{ key = "${{BIRD_KEY}}" }}

[hosts.gulls]
folder = "gulls"

[module_services]
gulls = "{gulls}"
"""
BIN = Path(sys.executable).parent
SERVERS = programs("docs/guides/mcp-servers.md")
PETS = programs("docs/guides/openapi.md")["openapi"]
ERROR = '{"jsonrpc": "2.0", "id": %d, "error": {"code": -31901, "message": "the card was charged in session 5"}}'
CHARGES = {
    "error": Answer(200, ERROR),
    "session": Answer(500, ERROR),
    "lost": Answer(404, "the card was charged"),
    "away": Answer(502, "the card was charged"),
    "broken": None,
}
SECRET = "planted-secret-0123456789"
ANYBODY = Caller(user_id="ada", permission="owner", allowed_modules="*")
ODD: list[OddServer] = []


def lay_out(folder: Path) -> None:
    """A folder with tools of its own and of two others, a repository, and two documents."""
    for path in (".toolfleet/tools", "owls", "birds/crows", "gulls", "nest"):
        (folder / path).mkdir(parents=True)
    (folder / ".toolfleet" / "tools" / "first.py").write_text(TOOL.format(name="first", words="Be the first."))
    (folder / "owls" / "hoot.py").write_text(TOOL.format(name="hoot", words="Hoot."))
    (folder / "birds" / "crows" / "caw.py").write_text(TOOL.format(name="caw", words="Caw."))
    (folder / "birds" / "crows" / "leaking.py").write_text(LEAKING)
    (folder / "token").write_text(f"{VALUE}\n")
    git = ["git", "-C", str(folder / "nest"), "-c", "user.name=Ada", "-c", "user.email=ada@owls.test"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (folder / "nest" / "egg.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Lay an egg"], check=True)
    (folder / "openapi.json").write_bytes((ROOT / "examples/petstore/openapi.json").read_bytes())
    secured = document(
        {"/echo": {"get": operation("echo", security=[{"key": []}])}},
        components={"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}}},
    )
    (folder / "finches.json").write_text(json.dumps(secured))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with its own tools, a folder that is named, and hosts of each kind in its settings. No test ends it.

    The servers: two real ones, one of them over a repository, and one that fails in odd ways. The documents: the guide's pet
    store, and a service that echoes what it is sent. One name is that of a module, too.
    """
    folder = tmp_path_factory.mktemp("home")
    lay_out(folder)
    with ExitStack() as stack:
        odd, _ = stack.enter_context(odd_http(CHARGES))
        store = stack.enter_context(serving("petstore", petstore.app))
        birds = stack.enter_context(bird_service())
        gulls = stack.enter_context(serve(make_module("gulls")))
        pets = PETS.replace("8010", store.url.rpartition(":")[2])
        servers, toml = SERVERS["mcp-servers"], TOML.format(odd=odd.url, birds=birds.url, gulls=gulls.url)
        (folder / "toolfleet.toml").write_text(f"{servers}\n{pets}\n{toml}")
        env = {"PATH": f"{BIN}:{os.environ['PATH']}", "BIRD_KEY": SECRET}
        ODD.append(odd)
        yield stack.enter_context(up(folder, env, "--tools", "owls", "--no-gateway"))


def names(fleet: Up) -> set[str]:
    listed = run("tools", "list", "--json", "--ignore-errors", cwd=fleet.folder)
    return {tool["name"] for tool in json.loads(listed.out)}


@asynccontextmanager
async def agent(fleet: Up) -> AsyncGenerator[ToolFleet]:
    """An agent beside the fleet."""
    async with ToolFleet(settings=Settings(redis_url=fleet.run_file().settings["redis_url"])) as running:
        yield running


async def answer(client: ToolFleet, tool: str, **arguments: Any) -> ToolResult:
    return await client.call(ToolCall(tool_name=tool, arguments=arguments), ANYBODY)


async def lists(client: ToolFleet, tool: str) -> str:
    """The name of the tool whose name begins so, once it is there."""
    found = list[str]()

    async def is_there() -> bool:
        found[:] = [each.name for each in await client.tools(ANYBODY) if each.name.startswith(tool)]
        return bool(found)

    await wait_until_answered(is_there, f"{tool} is listed")
    return found[0]


async def shows(fleet: Up, error: str) -> bool:
    """Whether the list of tools says so."""
    return error in (await asyncio.to_thread(run, "tools", "list", cwd=fleet.folder)).err


def test_each_folder_is_a_module(fleet: Up) -> None:
    """Under its own name, or the one that the settings give it. There is no gateway that was not wanted."""
    assert {"tools.first", "owls.hoot", "rooks.caw"} <= names(fleet)
    assert call("rooks.caw", "day=3", cwd=fleet.folder)["result"] == "caw 3"
    assert "gateway" not in fleet.run_file().processes


def test_where_each_tool_stands_is_listed(fleet: Up) -> None:
    """Its file, what that is imported as, and its version; as JSON, too."""
    listed = run("tools", "list", "--sources", "--json", "--ignore-errors", cwd=fleet.folder)
    (hoot,) = (each for each in json.loads(listed.out) if each["name"] == "owls.hoot")
    shown = run("tools", "list", "--sources", "--ignore-errors", cwd=fleet.folder, env={"COLUMNS": "400"}).out

    assert hoot["source"]["file"] == str(fleet.folder / "owls" / "hoot.py")
    assert hoot["source"]["python_module"] == "_toolfleet_tools.hoot"
    assert hoot["source"]["digest"].startswith(hoot["version"])
    (line,) = (line for line in shown.splitlines() if line.startswith("owls.hoot"))
    assert line.split()[3:6] == [hoot["source"]["file"], "_toolfleet_tools.hoot", hoot["version"]]


@pytest.mark.slow
def test_a_tool_that_is_created_is_there_at_once(fleet: Up) -> None:
    """Agents see it, and call it, without a restart of anything."""
    made = run("create", "tool", "echo_text", cwd=fleet.folder)
    assert made.code == 0, made.err
    wait_until_sync(lambda: "tools.echo_text" in names(fleet), "the new tool is listed")

    assert call("tools.echo_text", "text=owl", "times=2", cwd=fleet.folder)["result"] == {"text": "owl owl"}
    again = run("create", "tool", "echo_text", cwd=fleet.folder)
    assert (again.code, "is there already" in again.err) == (2, True)


def test_a_file_that_breaks_is_shown_and_its_version_before_is_served(fleet: Up) -> None:
    """The list of tools says which file and which line, and exits with 1 until it is whole again."""
    file = fleet.folder / "owls" / "hoot.py"
    whole = file.read_text()
    file.write_text(whole + "def (\n")

    wait_until_sync(lambda: run("tools", "list", cwd=fleet.folder).code == 1, "the error is known")
    listed = run("tools", "list", cwd=fleet.folder)
    assert f"{file}:{len(whole.splitlines()) + 1}: SyntaxError" in listed.err.replace("\n", "")
    assert "Its version before is served." in listed.err.replace("\n", " ")
    assert call("owls.hoot", cwd=fleet.folder)["result"] == "hoot 1"
    file.write_text(whole)
    wait_until_sync(lambda: run("tools", "list", cwd=fleet.folder).code == 0, "it is whole again")


@pytest.mark.slow
def test_all_hosts_read_their_files_anew_when_somebody_asks(fleet: Up) -> None:
    """Also a file that has not changed and did not load before, for a reason that lay elsewhere."""
    note = fleet.folder / "owls" / "note"
    file = fleet.folder / "owls" / "late.py"
    words = f"import pathlib\nassert pathlib.Path({str(note)!r}).exists()\n"
    file.write_text(words + TOOL.format(name="late", words="Be late."))
    wait_until_sync(lambda: run("tools", "list", cwd=fleet.folder).code == 1, "the error is known")
    broken = run("tools", "reload", cwd=fleet.folder)
    assert (broken.code, "AssertionError" in broken.err) == (1, True)

    note.touch()
    asked = run("tools", "reload", "--json", cwd=fleet.folder)
    assert asked.code == 0, asked
    answers = {each["module"]: each for each in json.loads(asked.out)}
    assert answers.keys() >= {"owls", "rooks", "tools"}
    assert all(each["is_done"] for each in answers.values())
    assert "owls.late" in names(fleet)
    said = run("tools", "reload", cwd=fleet.folder).out
    assert f"owls: {answers['owls']['tools']} tools" in said
    file.unlink()


def test_a_host_knows_no_key_of_the_fleets(fleet: Up) -> None:
    """Nor does the process of its tools know where the fleet's Redis is."""
    looking = '''
import os
from toolfleet.sdk import tool

@tool
def variables() -> list[str]:
    """List the variables."""
    return sorted(os.environ)
'''
    (fleet.folder / "owls" / "looking.py").write_text(looking)
    wait_until_sync(lambda: "owls.variables" in names(fleet), "the new tool is listed")

    assert "TOOLFLEET" not in str(call("owls.variables", cwd=fleet.folder)["result"])


@pytest.mark.slow
def test_a_planted_secret_is_found_nowhere(fleet: Up) -> None:
    """Its tools give it away in every way: neither an agent, nor Redis, a log, a list, or what is known of a process shows it."""
    with _redis_commands(fleet) as commands:
        said = [run("call", f"rooks.{name}", "--json", cwd=fleet.folder) for name in ("give", "fail", "shout")]
        wait_until_sync(lambda: "inside the module (KeyError)" in "".join(commands), "all results were seen")
    texts = [each.out + each.err for each in said]
    for text, words in zip(texts, ("[secret TOKEN]", "refused: [secret TOKEN]", "inside the module (K"), strict=True):
        assert words in text
    commands_of_people = (["tools", "list", "--json"], ["modules", "list"], ["audit", "tail"], ["config", "--all"])
    texts += [str(run(*words, cwd=fleet.folder)) for words in commands_of_people]
    logs = "".join(log.read_text(errors="replace") for log in (fleet.folder / ".toolfleet" / "logs").glob("*.log"))
    assert "KeyError: '[secret TOKEN]'" in logs
    assert "refused: [secret TOKEN]" in "".join(commands)
    tool_processes = [pid for pid, line in fleet.processes().items() if "tool_child" in line]
    assert tool_processes
    texts += [logs, *commands, *fleet.processes().values()]
    texts += [str(psutil.Process(pid).environ()) for pid in tool_processes]

    assert [text for text in texts if VALUE in text] == []


@contextmanager
def _redis_commands(fleet: Up) -> Generator[list[str]]:
    """What anybody has sent to the fleet's Redis meanwhile, also what is gone by then."""
    seen: list[str] = []
    with redis.Redis.from_url(fleet.run_file().settings["redis_url"]) as client, client.monitor() as monitor:

        def watch() -> None:
            for each in monitor.listen():
                seen.append(str(each and each["command"]))
                if seen[-1] == "ECHO over":
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield seen
        finally:
            client.execute_command("ECHO", "over")
            watching.join()


def test_what_cannot_be_served_is_one_clear_error(tmp_path: Path) -> None:
    """Before anything is started."""
    refused = run("up", "--tools", "missing", cwd=tmp_path)

    assert refused.code == 2
    assert "There is no tool folder" in refused.err.replace("\n", " ")


def test_a_line_that_names_a_module_twice_is_said_and_the_rest_goes_on(fleet: Up) -> None:
    """The service stays, as it is known everywhere; the folder of that name is not served."""
    assert "two modules named 'gulls'" in fleet.said().replace("\n", " ")
    assert "two modules named 'gulls'" in run("status", cwd=fleet.folder).out.replace("\n", " ")
    assert call("gulls.echo", "kind=herring", cwd=fleet.folder)["result"] == {"kind": "herring"}
    assert "gulls" not in fleet.run_file().processes


def test_a_servers_tools_are_listed_with_their_effects(fleet: Up) -> None:
    """What a server says of repeated calls counts if the settings trust it, and else each call is for once."""
    listed = json.loads(run("tools", "list", "--json", cwd=fleet.folder).out)
    effects = {tool["name"]: tool.get("effect") for tool in listed}

    assert effects["clock.convert_time"] == "once"
    assert (effects["git.git_log"], effects["git.git_commit"]) == ("read", "once")


def test_calls_do_real_work(fleet: Up) -> None:
    """A call goes to the server, and its text comes back; what the server refuses is a failure in its words."""
    now = call("clock.get_current_time", "timezone=Europe/Berlin", cwd=fleet.folder)
    log = call("git.git_log", "repo_path=nest", cwd=fleet.folder)
    wrong = run("call", "clock.get_current_time", "timezone=Owl/Nest", "--json", cwd=fleet.folder)

    assert "Europe/Berlin" in json.dumps(now["result"])
    assert "Lay an egg" in json.dumps(log["result"])
    assert "Owl/Nest" in wrong.out + wrong.err


@pytest.mark.parametrize("tool", CHARGES)
async def test_a_server_that_fails_after_its_effect_has_it_once(fleet: Up, owner: Caller, tool: str) -> None:
    """However it answers: nobody has said that such a call may be repeated, and nobody hears that nothing has happened."""
    async with agent(fleet) as client:
        ended = await client.call(ToolCall(tool_name=f"odd.{tool}"), owner)

    assert (ended.success, ended.effect_state, ended.retryable) == (False, "unknown", False)
    assert ("the card was charged" in str(ended.error)) == (tool != "broken")
    assert ODD[-1].executed[tool] == 1


@pytest.mark.slow
def test_the_settings_with_secrets_are_read(tmp_path: Path) -> None:
    """A place for a secret in a header is filled from where the settings say, and shown nowhere."""
    (tmp_path / "toolfleet.toml").write_text(SERVERS["mcp-secrets"])
    missing = run("host", "run", "issues", cwd=tmp_path)

    assert missing.code == 2
    assert "issues-token" in missing.err


async def test_a_public_document_is_called(fleet: Up) -> None:
    """Each of its operations does its work, and an error is the service's own."""
    async with agent(fleet) as client:
        by_id = await lists(client, "petstore.find_pet")
        made = await answer(client, "petstore.addPet", name="Hedwig", tag="owl")
        assert made.success, made
        assert (await answer(client, "petstore.findPets", tags=["owl"], limit=5)).result == [made.result]
        number = made.result["id"]
        assert (await answer(client, by_id, id=number)).result == made.result
        assert (await answer(client, "petstore.deletePet", id=number)).result is None
        gone = await answer(client, by_id, id=number)

        assert (gone.success, gone.effect_state) == (False, "none")
        assert "There is no pet" in str(gone.error)


async def test_a_former_name_is_the_tools_name(fleet: Up) -> None:
    """It is listed nowhere; a call by it is published under the present name, and shares keys with calls by that."""
    async with agent(fleet) as client:
        await lists(client, "petstore.find_pet_by_id")
        names = [each.name for each in await client.tools(ANYBODY)]
        made = await answer(client, "petstore.addPet", name="Errol")
        asked = [
            ToolCall(tool_name=name, arguments={"id": made.result["id"]}, idempotency_key="errol")
            for name in ("petstore.find_pet_by_id", "petstore.find_pet_by_id-x376f88fb")
        ]
        first, second = [await client.call(each, ANYBODY) for each in asked]

        assert "petstore.find_pet_by_id-x376f88fb" not in names
        assert first.result == made.result
        assert (second.tool_name, second.result) == (first.tool_name, first.result)
        assert second.audit.call_id == first.audit.call_id


async def test_a_changed_document_is_seen_by_agents(fleet: Up) -> None:
    """Without a restart of anything; one that breaks is shown, and leaves the tools."""
    file = fleet.folder / "openapi.json"
    whole = file.read_text()
    async with agent(fleet) as client:
        file.write_text(whole.replace('"deletePet"', '"forgetPet"'))
        await lists(client, "petstore.forgetPet")
        file.write_text(whole[:500])
        await wait_until_answered(lambda: shows(fleet, "DocumentWrong"), "the error is shown")
        await lists(client, "petstore.forgetPet")
        file.write_text(whole)
        await lists(client, "petstore.deletePet")


async def test_a_secret_is_nowhere(fleet: Up) -> None:
    """Neither in a result, nor in Redis, nor in any file that the fleet has written: only the service has it."""
    async with agent(fleet) as client:
        await lists(client, "finches.echo")
        echoed = await answer(client, "finches.echo")
        definitions = json.dumps([each.model_dump(mode="json") for each in await client.tools(ANYBODY)])
    assert echoed.success, echoed
    assert echoed.result["arguments"] == {"key": "[secret BIRD_KEY]"}
    assert SECRET not in definitions

    redis_url = fleet.run_file().settings["redis_url"]
    assert SECRET not in redis_snapshot.take(redis_url)
    with redis.Redis.from_url(redis_url) as kept:
        kept.save()
    files = [path for path in fleet.folder.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_a_host_is_started_by_hand(tmp_path: Path) -> None:
    """With a document of YAML, chosen by tag, and a secret from a file; it says where it is."""
    text = "openapi: 3.1.0\npaths:\n  /echo:\n    get: {tags: [a], operationId: echo, security: [{key: []}]}\n"
    text += "    post: {operationId: post}\ncomponents:\n  securitySchemes: {key: {type: http, scheme: bearer}}\n"
    (tmp_path / "birds.yaml").write_text(text)
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "toolfleet.toml").write_text('[secrets.BIRD_KEY]\nfile = "key"\n')
    output = tmp_path / "said.txt"
    with bird_service() as birds, output.open("wb") as file:
        words = ["birds", "--document", "birds.yaml", "--base", birds.url, "--tag", "a", "--auth", "key=${BIRD_KEY}"]
        command = [sys.executable, "-m", "toolfleet_cli", "host", "openapi", *words]
        host = start(command, env={}, cwd=tmp_path, output=file)
        try:
            wait_until_sync(lambda: "is served at" in output.read_text(), "it is served")
            wait_until_sync(lambda: "birds serves 1 tools" in output.read_text(), "it has its tool")
        finally:
            end(host, patience_seconds=20)
        assert SECRET not in output.read_text()
