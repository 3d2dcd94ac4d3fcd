"""Each program loads what it uses: its start is as quick as that is little."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

AGENT = "from toolfleet import Caller, ToolCall, ToolFleet"
FLEET = f"{AGENT}; ToolFleet('redis://127.0.0.1:1')"
QUEUES = ("celery", "kombu", "amqp", "billiard")
SERVERS = ("starlette", "uvicorn", "mcp", "flower", "toolfleet_gateway", "toolfleet_workers")
PROGRAMS = (
    *("toolfleet_registry.contracts.programs", "toolfleet_registry.local.program_tools", "toolfleet_tasks.programs"),
    *("toolfleet_workers.execution.interpreter", "toolfleet_workers.execution.programs", "pydantic_monty"),
)
NOT_FOR_ANY_CALL = (
    *("httpx", "croniter", "rich", "semver", "sqlalchemy", "structlog"),
    *("click", "h11", "jmespath", "pygments", "yaml", "difflib", "sqlite3", "tomllib"),
    "toolfleet_registry.agents.explanation",
    "toolfleet_registry.catalog.registration",
    "toolfleet_registry.contracts.jobs",
    "toolfleet_registry.formats",
    "toolfleet_registry.personal_data.personal_data",
    "toolfleet_registry.store.redis",
    "toolfleet_registry.tags",
    *PROGRAMS,
    *(f"toolfleet_tasks.{part}" for part in ("approvals", "dead_letters", "jobs", "operations", "wakeups")),
)
MOST_OWN = 140  # modules of an agent with a fleet: each one more costs a start a hundred steps and a look for its file
OPEN_FLEET = (
    *("redis", "h11", "jsonschema_rs", "jmespath", "cryptography", "opentelemetry"),
    "toolfleet_tasks.client.session",
)
OF_COMMANDS = ("redis", "structlog", "toolfleet_cli.commands")
GROUPS = (
    "agents",
    "approvals",
    "audit",
    "create",
    "dead-letters",
    "host",
    "jobs",
    "keys",
    "modules",
    "tools",
    "wake-ups",
)
COMMANDS = (
    *("up", "worker", "gateway", "mcp", "logs"),
    *("config", "status", "doctor", "capacity", "call", "why"),
)

HELP = """
for name in {names!r}:
    sys.argv = ["toolfleet", name, "--help"]
    try: main()
    except SystemExit: pass
    too_much = [each for each in {without!r} if each in sys.modules]
    assert not too_much, (name, too_much)
print("ok")
"""
BUILT = """
from toolfleet_registry.contracts.message import Message, ModuleMessage
def below(model): return [each for child in model.__subclasses__() for each in (child, *below(child))]
models = below(Message) + below(ModuleMessage)
print(len(models) > 20, [model.__name__ for model in models if model.__pydantic_complete__])
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def loaded(code: str) -> set[str]:
    """The modules that a Python of its own has when this has run."""
    ended = run(
        f"import json, sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint('\\n' + json.dumps(list(sys.modules)))"
    )
    return set(json.loads(ended.splitlines()[-1]))


def command(*words: str) -> str:
    return f"sys.argv = {['toolfleet', *words]!r}; from toolfleet_cli import main; main()"


@pytest.mark.parametrize(
    ("code", "without"),
    [
        # What an agent's first line loads: messages and settings, and none of what an open fleet is made of.
        (AGENT, (*OPEN_FLEET, *NOT_FOR_ANY_CALL, *QUEUES, *SERVERS)),
        # An agent with a fleet: what its calls need.
        (FLEET, (*NOT_FOR_ANY_CALL, *QUEUES, *SERVERS)),
        # A worker, until programs are set.
        ("import toolfleet_workers.worker_app, toolfleet_tasks.jobs.engine", PROGRAMS),
        # A program that signs nothing: no library for signing.
        ("import toolfleet_tasks.messages.signing as signing; signing.Seal(None)", ("jwt", "cryptography")),
        # A program that asks for help or a version: no command's module.
        *(
            (command(*words), ("asyncio", "pydantic", "celery", "toolfleet_tasks", *OF_COMMANDS))
            for words in ([], ["--help"], ["-h"], ["--version"])
        ),
        # A mistyped command: typer itself loads pydantic, to say so.
        (command("caal"), OF_COMMANDS),
    ],
)
def test_a_program_loads_none_of_what_it_does_not_use(code: str, without: Sequence[str]) -> None:
    """What it does not load is found by name in a Python of its own."""
    assert loaded(code).isdisjoint(without)


def test_an_agent_with_a_fleet_has_few_modules_of_ours() -> None:
    """What operators see, jobs, approvals and formats for models are loaded by those who use them."""
    own = {each for each in loaded(FLEET) if each.partition(".")[0].startswith("toolfleet")}

    assert "toolfleet_tasks.client.session" in own
    assert len(own) <= MOST_OWN


def test_a_command_loads_nothing_of_the_fleet_before_it_asks_it() -> None:
    """Its help, and a mistake in its words, take as long as its own module: no Redis, no queue, no client, no server."""
    without = (*QUEUES, *SERVERS, "httpx", "redis", "structlog", "toolfleet_tasks")
    code = HELP.format(names=(*COMMANDS, *GROUPS), without=without)

    assert run(f"import sys\nfrom toolfleet_cli import main\n{code}").splitlines()[-1] == "ok"


def test_an_import_builds_no_message() -> None:
    """A validator is built with the first message of its kind: a process uses a few of them all."""
    for code in (AGENT, "import toolfleet_registry.settings"):
        assert run(code + BUILT) == "True []\n"
