"""`toolfleet up` in a clone: everything runs, is found from below, stays alive; what the guides show works beside it."""

import json
import os
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from support.command import call, run
from support.documents import programs
from support.modules.example_modules import EXAMPLES
from support.processes import is_gone
from support.servers.plain_http import PLAIN
from support.up import COMMAND, Up, printed, up
from support.waiting import wait_until_sync
from support.workers.wakes import SECRET
from toolfleet_cli.local.modules import SLOW_EXAMPLES

TAGS = programs("docs/guides/tool-folders.md")
LOCAL_TOOLS = {"TOOLFLEET_LOCAL_TOOLS": "bot_tools:tools"}
SEARCH = ("call", "research.search_docs", "query=redis", "--timeout", 5)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with the example modules. No test ends it."""
    with up(tmp_path_factory.mktemp("home"), {"TOOLFLEET_ARTIFACT_STORE": ""}) as running:
        yield running


@pytest.fixture
def local_fleet(tmp_path: Path) -> Iterator[Up]:
    """With the guide's own tools."""
    (tmp_path / "bot_tools.py").write_text(TAGS["bot-tools"])
    with up(tmp_path, LOCAL_TOOLS) as running:
        yield running


@pytest.fixture
def below(fleet: Up) -> Path:
    """A folder somewhere below that of the fleet."""
    folder = fleet.folder / "some" / "where"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def inside(lines: str, *, given: str, said: str) -> str:
    """A program in which a guide's lines stand, with a fleet."""
    return f"""
import asyncio
from toolfleet import Caller, ToolFleet
caller = Caller(user_id="ada", permission="user")
{given}
async def main():
    async with ToolFleet() as fleet:
{textwrap.indent(lines, " " * 8)}
    print({said})
asyncio.run(main())
"""


def test_the_run_file_says_what_runs_where(fleet: Up) -> None:
    """Redis, Flower and each module of the clone answer at the addresses in it."""
    run_file = fleet.run_file()
    modules = run_file.settings["module_services"]

    assert run_file.pid == fleet.process.pid
    assert set(modules) == {path.parent.name for path in (EXAMPLES / "modules").glob("*/main.py")}
    assert {"file_manager", "knowledge", "research"} < set(modules)
    assert run_file.settings["call_contents"] == "all"
    assert set(run_file.settings["slow_modules"]) >= {"claude_code", "deployer", "report_builder"}
    for name, url in modules.items():
        assert httpx.get(f"{url}/health", verify=PLAIN).json()["module"] == name
    assert run_file.flower_url is not None
    assert httpx.get(f"{run_file.flower_url}/healthcheck", verify=PLAIN).text == "OK"
    with Redis.from_url(run_file.settings["redis_url"], decode_responses=True) as redis:
        assert redis.config_get("appendonly") == {"appendonly": "yes"}


@pytest.mark.parametrize(
    "command",
    ["CONFIG SET dir /", "MODULE LOAD /x.so", "ACL SETUSER default +@all", "DEBUG SLEEP 0", "REPLICAOF 127.0.0.1 1"],
)
def test_its_redis_touches_no_other_files(fleet: Up, command: str) -> None:
    """Any program of the machine reaches it, as one of a host does, and it may be root's."""
    with Redis.from_url(fleet.run_file().settings["redis_url"]) as redis, pytest.raises(ResponseError):
        redis.execute_command(*command.split())


def test_nobody_else_may_look_into_its_folder(fleet: Up) -> None:
    """The folder holds users' files, results, and perhaps a password; git does not see it either."""
    folder = fleet.folder / ".toolfleet"

    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / ".gitignore").read_text() == "*\n!tools/\n!tools/**\n"


def test_flower_asks_for_what_a_file_has(fleet: Up) -> None:
    """Its pages and its API, which otherwise would send tasks for any page in a browser; no list of processes shows it."""
    file = fleet.folder / ".toolfleet" / "flower-auth"
    name, _, password = file.read_text().strip().partition(":")
    url = f"{fleet.run_file().flower_url}/api/workers"
    asked = [httpx.get(url, auth=auth, verify=PLAIN).status_code for auth in (None, (name, "x"), (name, password))]

    assert asked == [401, 401, 200]
    assert (file.stat().st_mode & 0o777, str(file) in fleet.said()) == (0o600, True)
    assert [line for line in fleet.processes().values() if password in line] == []


def test_it_says_what_runs_and_how_to_try_it(fleet: Up) -> None:
    """The addresses, the modules with their lanes, and a command to copy, which works."""
    said = fleet.said()
    settings = fleet.run_file().settings
    command = next(line.split() for line in said.splitlines() if line.startswith("  toolfleet call "))

    assert settings["redis_url"] in said
    assert f"Flower  {fleet.run_file().flower_url}" in said
    for name, url in settings["module_services"].items():
        lane = "slow" if name in SLOW_EXAMPLES else "fast"
        assert any(line.split()[:2] == [name, lane] and line.split()[3] == url for line in said.splitlines() if line)
    assert run(*command[1:], cwd=fleet.folder).code == 0


@pytest.mark.parametrize(
    ("tool", "words", "lane"),
    [
        ("file_manager.create_document", ["name=owls.txt", "content=hoot", "--user", "ada"], "fast"),
        ("report_builder.build_report", ["title=Owls", "seconds=1", "--user", "ada"], "slow"),
    ],
)
def test_other_commands_find_it_from_below(fleet: Up, below: Path, tool: str, words: list[str], lane: str) -> None:
    """A call from a subfolder is run by the worker of its module's lane."""
    result = call(tool, *words, cwd=below)

    assert result["success"], result
    assert f"{lane}-{fleet.process.pid}@" in json.dumps(result["audit"])


def test_a_call_that_takes_its_time_shows_it(fleet: Up) -> None:
    """On a terminal, after a second, and apart from the result."""
    words = ["call", "report_builder.build_report", "title=Owls", "seconds=2", "--user", "ada", "--json"]
    ours, theirs = os.openpty()
    with subprocess.Popen([*COMMAND, *words], cwd=fleet.folder, stdout=subprocess.PIPE, stderr=theirs) as command:
        os.close(theirs)
        result, _ = command.communicate()
    shown = os.read(ours, 2**16).decode()
    os.close(ours)

    assert "report_builder.build_report is running" in shown
    assert json.loads(result)["success"]


def test_users_files_lie_in_its_folder(fleet: Up, below: Path) -> None:
    """What a module stores goes with the fleet's data, not into the clone."""
    assert call("file_manager.create_document", "name=a.txt", "content=b", "--user", "bea", cwd=below)["success"]

    (content,) = (fleet.folder / ".toolfleet" / "files" / "content" / "bea").iterdir()
    assert content.read_text() == "b"


def test_large_results_lie_in_its_folder(fleet: Up, below: Path) -> None:
    """Where the libraries are; it is not shown as a module, and a command to try is one of the user's own."""
    words = ["name=owls.txt", f"content={'hoot ' * 10_000}", "--user", "eve"]
    assert call("file_manager.create_document", *words, cwd=below)["success"]
    read = call("file_manager.read_document", "name=owls.txt", "max_chars=200000", "--user", "eve", cwd=below)

    (artifact,) = read["artifacts"]
    (kept,) = (fleet.folder / ".toolfleet" / "artifacts").rglob(artifact["id"])
    assert kept.stat().st_size == artifact["size"] > 50_000
    assert "artifacts" not in fleet.said()


@pytest.mark.parametrize("words", [["worker", "--lane", "fast"], ["worker", "--lane", "slow"], ["beat"]])
def test_a_check_tells_who_answers(fleet: Up, below: Path, words: list[str]) -> None:
    """The health check of a container works here as well."""
    ended = run(*words, "--check", cwd=below)

    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_a_second_one_is_refused(fleet: Up, below: Path) -> None:
    """Here and below: one sentence that names the process."""
    for folder in (fleet.folder, below):
        ended = run("up", cwd=folder)

        assert ended.code == 2
        assert ended.err == (
            f"A fleet is running here already (process {fleet.process.pid}): use it, or stop it first.\n"
        )


def test_a_models_tool_call_goes_there_and_back(fleet: Up) -> None:
    """The lines about formats, with a block as Anthropic's API brings it."""
    lines = programs("docs/guides/calling-tools.md")["formats"]
    given = """
from types import SimpleNamespace as Answer
block = Answer(type="tool_use", id="t1", name="research__search_docs", input={"query": "slow lane"})
async def create(*, tools, **asked):
    assert "research__search_docs" in [tool["name"] for tool in tools]
    return Answer(content=[block])
client, model, messages = Answer(messages=Answer(create=create)), "a model", []
"""
    said = printed(inside(lines, given=given, said='reply["tool_use_id"], reply.get("is_error")'), cwd=fleet.folder)

    assert said.startswith("t1 ")
    assert "True" not in said


@pytest.mark.slow
def test_a_models_tag_is_executed_by_a_worker(local_fleet: Up) -> None:
    """The lines about tags, with the guide's own tool running in the fleet."""
    given = """
import bot_tools
from toolfleet.tags import TagRegistry, ToolContext, parse_response
prompt, question = "", "what is new?"
text = "I will look.\\nRESEARCH: slow lanes"
"""
    program = inside(TAGS["tags"], given=given, said='result.message, "|", parsed')

    assert printed(program, cwd=local_fleet.folder, env=LOCAL_TOOLS).startswith("Looking for slow lanes. |")


def test_a_job_is_polled_and_its_end_is_heard_of(fleet: Up) -> None:
    """The program about jobs, as it stands, beside a fleet that is up."""
    assert printed(programs("docs/guides/jobs.md")["job"], cwd=fleet.folder).startswith("job.completed ")


def test_a_core_acts_once_on_what_comes_twice(fleet: Up) -> None:
    """The lines of a core: signed news are acted on once, and what is not signed is refused."""
    given = """
import asyncio, os
from datetime import UTC, datetime
import httpx
from fastapi import FastAPI, Request, Response
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select
from standardwebhooks import Webhook
from toolfleet import Caller, ToolCall, ToolFleet, WakeUp
engine = create_engine("sqlite:///core.db")
metadata = MetaData()
messages = Table("messages", metadata, Column("text", String))
metadata.create_all(engine)
caller, app = Caller(user_id="ada", permission="admin", allowed_modules="*"), FastAPI()
news = WakeUp(
    kind="continue", type="job.completed", wake_id="w", job_id="w", timestamp=1, message="", result={"workspace": "/nowhere"}
)
"""
    sending = """
async def main():
    global fleet
    async with ToolFleet() as fleet, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://core") as http:
        body, at = news.model_dump_json(), datetime.now(UTC)
        signed = {"webhook-timestamp": str(int(at.timestamp())), "webhook-signature": Webhook(os.environ["TOOLFLEET_CORE_SECRET"]).sign("w", at, body)}
        for headers in (signed, signed, {}):
            print((await http.post("/continue", content=body, headers={"webhook-id": "w", **headers})).status_code)
    with engine.connect() as connection:
        print(len(connection.execute(select(messages.c.text)).all()))
asyncio.run(main())
"""
    core = programs("docs/guides/jobs.md")["core"]
    said = printed(f"{given}\n{core}\n{sending}", cwd=fleet.folder, env={"TOOLFLEET_CORE_SECRET": SECRET})

    assert said == "204\n204\n401\n1\n"


@pytest.mark.parametrize(
    "words",
    [
        ["-m toolfleet_workers", "fast-"],
        ["redis-server"],
        ["sdk.serve", "modules.research"],
    ],
)
def test_a_killed_process_comes_back(fleet: Up, words: list[str]) -> None:
    """A call that is made while a worker, Redis or its module is away still ends well."""
    killed = fleet.pid(*words)
    os.kill(killed, signal.SIGKILL)

    def is_back() -> bool:
        found = [pid for pid, line in fleet.processes().items() if all(word in line for word in words)]
        return bool(found) and killed not in found

    wait_until_sync(is_back, f"it is back\n{fleet.said()}")
    wait_until_sync(
        lambda: not run(*SEARCH, cwd=fleet.folder).code,
        f"calls work again\n{fleet.log('worker-fast')}",
    )
    assert "is started again" in fleet.said()
    assert is_gone(killed)
