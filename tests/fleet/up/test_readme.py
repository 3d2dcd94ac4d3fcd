"""What the README and the guides show works as it stands."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.command import run
from support.documents import ROOT, programs
from support.up import Up, up
from support.workers.wakes import SECRET

README = "README.md"
TAGS = programs("docs/guides/response-tags.md")
_TYPED = re.compile(r"^\$ (.*)\n([^$]*)", re.MULTILINE)
_DIFFERS = re.compile(r"[\d-]{10} [\d:]{8}|[\d.]+ m?s|[\da-f-]{36}")  # from run to run: times and ids

LOCAL_TOOLS = {"TOOLFLEET_LOCAL_TOOLS": "bot_tools:tools"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("readme")) as running:
        yield running


@pytest.fixture
def local_fleet(tmp_path: Path) -> Iterator[Up]:
    """With the guide's own tools."""
    (tmp_path / "bot_tools.py").write_text(TAGS["bot-tools"])
    with up(tmp_path, LOCAL_TOOLS) as running:
        yield running


def python(program: str, fleet: Up, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=fleet.folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def curl(program: str, fleet: Up) -> str:
    """What a call with curl prints, wherever the gateway is."""
    env = {**os.environ, "no_proxy": "*"}
    return subprocess.check_output(["/bin/sh", "-euc", program], cwd=fleet.folder, env=env, text=True)


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


def typed(page: str) -> list[tuple[str, str]]:
    """The commands that a page says to type, each with what it shows of their output."""
    blocks = re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [(command, shown) for block in blocks for command, shown in _TYPED.findall(block)]


def test_the_readmes_programs_do_what_it_shows(tmp_path: Path) -> None:
    """The module is served by the command that stands there, the agent prints what stands there, and curl calls the tool."""
    shown = dict(typed(README))
    module, agent = programs(README)["module"], programs(README)["agent"]
    (tmp_path / "owls").mkdir()
    (tmp_path / "owls" / "main.py").write_text(module)
    (serving,) = (command for command in shown if command.startswith("toolfleet up "))
    with up(tmp_path, None, *shlex.split(serving)[2:]) as running:
        ended = python(agent, running)
        lines = run("audit", "tail", cwd=tmp_path).out
        over_http = json.loads(curl(programs(README)["curl"], running))

    assert ended.stdout == shown["python agent.py"], ended.stderr
    assert _DIFFERS.sub("…", lines) == _DIFFERS.sub("…", shown["toolfleet audit tail"])
    assert (over_http["success"], over_http["result"]) == (True, {"owls": 8})


def test_a_models_tool_call_goes_there_and_back(fleet: Up) -> None:
    """The lines about formats, with a block as Anthropic's API brings it."""
    lines = programs("docs/guides/provider-formats.md")["formats"]
    given = """
from types import SimpleNamespace as Answer
block = Answer(type="tool_use", id="t1", name="research__search_docs", input={"query": "slow lane"})
async def create(*, tools, **asked):
    assert "research__search_docs" in [tool["name"] for tool in tools]
    return Answer(content=[block])
client, model, messages = Answer(messages=Answer(create=create)), "a model", []
"""
    ended = python(inside(lines, given=given, said='reply["tool_use_id"], reply.get("is_error")'), fleet)

    assert ended.stdout.startswith("t1 "), ended.stderr
    assert "True" not in ended.stdout


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
    ended = python(program, local_fleet, LOCAL_TOOLS)

    assert ended.stdout.startswith("Looking for slow lanes. |"), ended.stderr


def test_a_job_is_polled_and_its_end_is_heard_of(fleet: Up) -> None:
    """The program about jobs, as it stands, beside a fleet that is up."""
    ended = python(programs("docs/guides/jobs.md")["job"], fleet)

    assert ended.stdout.startswith("job.completed "), ended.stderr


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
    core = programs("docs/guides/wake-ups.md")["core"]
    ended = python(f"{given}\n{core}\n{sending}", fleet, {"TOOLFLEET_CORE_SECRET": SECRET})

    assert ended.stdout == "204\n204\n401\n1\n", ended.stderr
