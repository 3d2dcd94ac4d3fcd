"""What the documents show is typed: each of their programs passes `mypy --strict`, as a user's own would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import pages
from support.documents import programs as programs_of

ROOT = Path(__file__).parents[2]
SECONDS = 300

CALLER = """
from toolfleet import Caller, ToolCall, ToolFleet

fleet = ToolFleet()
caller = Caller(user_id="ada", permission="user")
"""
# What stands before and after the lines that are no whole programs.
PREAMBLES: dict[tuple[str, str], tuple[str, str]] = {
    ("docs/getting-started.md", "tool"): (
        'from toolfleet.sdk import Module\n\nmodule = Module("owls", description="Counts owls.")\n\n\n',
        "",
    ),
    ("docs/guides/calling-tools.md", "formats"): (
        f"""{CALLER}
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam

client = AsyncAnthropic()
model = "a model"
messages: list[MessageParam] = []


async def program() -> None:
""",
        "    messages.append({'role': 'user', 'content': [reply]})\n",
    ),
    ("docs/guides/tool-folders.md", "tags"): (
        f"""{CALLER}
import bot_tools

from toolfleet.tags import TagRegistry, ToolContext, parse_response

prompt = question = text = ""


async def program() -> None:
""",
        "",
    ),
    ("docs/guides/jobs.md", "core"): (
        f"""{CALLER}
import os

from fastapi import FastAPI, Request, Response
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert

app = FastAPI()
engine = create_engine("sqlite://")
messages = Table("messages", MetaData(), Column("text", String))

""",
        "",
    ),
    ("docs/guides/jobs.md", "url-poll"): ("from toolfleet import url_poll\n\n", ""),
    ("docs/guides/jobs.md", "schedules"): (
        "from datetime import UTC, datetime, timedelta\n\nfrom toolfleet import Schedule\n\n",
        "",
    ),
}
LEFT_OUT = {
    ("docs/guides/jobs.md", "job-conditions"),  # a list of conditions
    ("docs/guides/calling-tools.md", "celery"),  # of a package that says nothing of its types
    ("docs/guides/agent-frameworks.md", "claude"),  # of a package that the lock file leaves out
    ("docs/guides/agent-frameworks.md", "claude-deferred"),  # of the same
}

# The other formats, as their providers' packages take them.
PROVIDERS = """
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.responses import ResponseInputParam, ToolParam
from anthropic.types import ToolParam as AnthropicTool, ToolResultBlockParam, ToolUnionParam

from toolfleet import ToolDefinition, ToolFleet, ToolResult
from toolfleet.formats import convert, from_result


def chat(tools: list[ToolDefinition], result: ToolResult, messages: list[ChatCompletionMessageParam]) -> None:
    offered: list[ChatCompletionToolUnionParam] = convert(tools, "openai_chat", strict=True)
    messages.append(from_result(result, "openai_chat", "1"))
    OpenAI().chat.completions.create(model="m", messages=messages, tools=offered)
    OpenAI().chat.completions.create(model="m", messages=messages, tools=ToolFleet.tools_to_openai_format(tools))


def responses(tools: list[ToolDefinition], result: ToolResult, items: ResponseInputParam) -> None:
    offered: list[ToolParam] = convert(tools, "openai_responses")
    items.append(from_result(result, "openai_responses", "1"))
    OpenAI().responses.create(model="m", input=items, tools=offered)


def anthropic(tools: list[ToolDefinition], result: ToolResult) -> None:
    one: list[AnthropicTool] = convert(tools, "anthropic")
    any_of_them: list[ToolUnionParam] = convert(tools, "anthropic")
    block: ToolResultBlockParam = from_result(result, "anthropic", "1")
    print(one, any_of_them, block, result.audit.attempts)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for page in pages():
        for name, text in programs_of(page, language="python").items():
            if (page, name) not in LEFT_OUT:
                (folder / _file_name(page, name, text)).write_text(_whole(page, name, text))
    (folder / "providers.py").write_text(PROVIDERS)
    return folder


def _file_name(page: str, name: str, text: str) -> str:
    named = re.match(r"# (\w+\.py)\n", text)  # a file of the reader's
    return named[1] if named else f"{Path(page).stem}_{name}.py".replace("-", "_")


def _whole(page: str, name: str, text: str) -> str:
    before, after = PREAMBLES.get((page, name), ("", ""))
    indentation = "    " if before.endswith("-> None:\n") else ""
    return before + "".join(f"{indentation if line.strip() else ''}{line}" for line in text.splitlines(True)) + after


def checked(*command: str, folder: Path) -> str:
    env = {**os.environ, "MYPYPATH": str(ROOT / "examples")}  # where the examples' own modules are
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_every_program_is_checked(programs: Path) -> None:
    names = {path.name for path in programs.iterdir()}
    assert names >= {
        "getting_started_agent.py",
        "calling_tools_formats.py",
        "tool_folders_bot_tools.py",
        "tool_folders_owl_tools.py",
        "jobs_job.py",
        "jobs_url_poll.py",
        "providers.py",
    }
    assert len(names) > 10


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 20)  # without a cache it takes minutes on a busy machine
def test_programs_pass_mypy_in_its_strict_mode(programs: Path) -> None:
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'readme'}"
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", cache)
    assert checked(*mypy, ".", folder=programs) == ""
