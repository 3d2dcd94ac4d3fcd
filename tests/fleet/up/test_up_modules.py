"""`toolfleet up` with modules that somebody develops, such as the README's: trouble on its console, reload and restarts."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import call, run
from support.documents import ROOT, programs
from support.module_server import serve
from support.owls import make_module
from support.processes import is_gone
from support.up import Up, printed, up
from support.waiting import wait_until_sync

README = "README.md"
_TYPED = re.compile(r"^\$ (.*)\n([^$]*)", re.MULTILINE)
_DIFFERS = re.compile(r"[\d-]{10} [\d:]{8}|[\d.]+ m?s|[\da-f-]{36}")  # from run to run: times and ids
_MAIN = '''"""A module."""
import pathlib, sys
from toolfleet.sdk import Module

module = Module("{name}")
if (pathlib.Path(__file__).parent / "sick").exists():
    sys.exit(3)

@module.tool(permission="admin", effect="read")
async def greet() -> str:
    """Greet."""
    return "hoot"

@module.tool(permission="admin", effect="read")
async def boom() -> str:
    """Fail."""
    raise ValueError("feathers")

app = module.app
'''
_MORE = '''
@module.tool(permission="admin", effect="read")
async def greet() -> str:
    """Say something."""
    return "toowit"


app = module.app
'''


def typed(page: str) -> dict[str, str]:
    """The commands that a page says to type, each with what it shows of their output."""
    blocks = re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return {command: shown for block in blocks for command, shown in _TYPED.findall(block)}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The README's fleet, with two modules more, one of which starts only once it is corrected; all are reloaded. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    mains = {
        "owls": programs(README)["module"],
        "crows": _MAIN.format(name="crows"),
        "jays": "import no_such_library\n",
    }
    for name, main in mains.items():
        (folder / name).mkdir()
        (folder / name / "main.py").write_text(main)
    (serving,) = (command for command in typed(README) if command.startswith("toolfleet up "))
    more = ("--module", "crows", "--module", "jays", "--reload")
    with up(folder, None, *shlex.split(serving)[2:], *more) as running:
        assert "jays" in run("status", cwd=folder).out
        (folder / "jays" / "main.py").write_text(_MAIN.format(name="jays"))
        wait_until_sync(lambda: "From now on calls reach jays" in running.said(), running.said())
        yield running


def pid_of(fleet: Up, name: str) -> int:
    return fleet.run_file().processes[name].pid


def test_the_readmes_programs_do_what_it_shows(fleet: Up) -> None:
    """The module is served by the command that stands there, the agent prints what stands there, and curl calls the tool."""
    shown, env = typed(README), {**os.environ, "no_proxy": "*"}
    said = printed(programs(README)["agent"], cwd=fleet.folder)
    lines = run("audit", "tail", cwd=fleet.folder).out.splitlines()
    curl = ["/bin/sh", "-euc", programs(README)["curl"]]  # wherever the gateway is
    over_http = json.loads(subprocess.check_output(curl, cwd=fleet.folder, env=env, text=True))

    assert said == shown["python agent.py"]
    written = shown["toolfleet audit tail"].splitlines()
    assert [_DIFFERS.sub("…", line) for line in lines[-2:]] == [_DIFFERS.sub("…", line) for line in written]
    assert (over_http["success"], over_http["result"]) == (True, {"owls": 8})


def test_its_processes_and_what_they_do_are_in_the_run_file(fleet: Up) -> None:
    """By name, as the other commands find them."""
    processes = fleet.run_file().processes

    assert set(processes) >= {"redis", "owls", "crows", "jays", "beat", "flower", "gateway", "worker-fast"}
    assert {process.pid for process in processes.values()} <= set(fleet.processes())


def test_it_goes_on_without_a_module_that_does_not_start_and_says_why(fleet: Up) -> None:
    """With the last lines of its log; once it is corrected, it is served."""
    said = fleet.said()

    assert "The fleet goes on without jays, and uses it once it is ready: jays ended with exit code" in said
    assert "No module named 'no_such_library'" in said
    assert call("jays.greet", cwd=fleet.folder)["result"] == "hoot"


def test_it_prints_what_an_agent_elsewhere_must_set(fleet: Up, tmp_path: Path) -> None:
    """A line to copy, with the address of its Redis: with nothing else its modules are known there, and called."""
    exports = [line.split()[1].split("=", 1) for line in fleet.said().splitlines() if line.startswith("  export ")]
    env = dict(exports)
    assert env == {"TOOLFLEET_REDIS_URL": fleet.run_file().settings["redis_url"]}

    called = run("call", "crows.greet", "--timeout", "40", cwd=tmp_path, env=env)
    assert (called.code, called.out) == (0, "hoot\n"), called.err

    def status_there() -> dict[str, Any]:
        return dict(json.loads(run("status", "--json", cwd=tmp_path, env=env).out))

    wait_until_sync(lambda: not status_there()["troubles"], "modules that tests before have restarted are well")
    status = status_there()
    assert [(lane["lane"], len(lane["workers"]), lane["modules"]) for lane in status["lanes"]] == [
        ("fast", 1, ["crows", "jays", "owls"]),
        ("slow", 0, []),
    ]
    assert (status["troubles"], status["dead_letters"], status["processes"]) == ([], 0, {})


def test_a_modules_traceback_is_on_the_console(fleet: Up) -> None:
    """With the module's name before each line; what is no trouble stays in the log."""
    assert not call("crows.boom", cwd=fleet.folder)["success"]

    wait_until_sync(lambda: "crows | ValueError: feathers" in fleet.said(), f"it is shown\n{fleet.said()}")
    assert "crows | ERROR: toolfleet.sdk: crows.boom failed" in fleet.said()
    assert 'crows |     raise ValueError("feathers")' in fleet.said()
    assert "POST /execute" not in fleet.said()
    assert "POST /execute" in fleet.log("crows")


def test_a_module_whose_files_change_is_restarted_alone(fleet: Up) -> None:
    """On the port that it had; agents get what it offers now, and nobody asks for a refresh."""
    before, services = fleet.run_file().processes, fleet.run_file().settings["module_services"]
    main = fleet.folder / "owls" / "main.py"
    main.write_text(main.read_text().replace("app = module.app\n", _MORE))
    wait_until_sync(lambda: "owls has changed and is restarted" in fleet.said(), "it is said")
    wait_until_sync(lambda: pid_of(fleet, "owls") != before["owls"].pid, "it is restarted")

    def is_new() -> bool:
        return "Say something." in run("tools", "show", "owls.greet", cwd=fleet.folder).out

    wait_until_sync(is_new, f"the new one is offered\n{fleet.said()}")
    assert call("owls.greet", cwd=fleet.folder)["result"] == "toowit"
    after = fleet.run_file().processes
    restarted = {name for name in before if before[name].pid != after[name].pid}
    assert restarted - {"jays"} == {"owls"}  # that jays was corrected may be seen only now
    assert fleet.run_file().settings["module_services"] == services


@pytest.mark.parametrize("name", [pytest.param("crows", marks=pytest.mark.slow), "worker-fast"])
def test_restart_ends_a_process_in_order_and_starts_it_anew(fleet: Up, name: str) -> None:
    """It returns when the new one is ready; from a folder below, as well."""
    below = fleet.folder / "below"
    below.mkdir(exist_ok=True)
    old = pid_of(fleet, name)
    ended = run("restart", name, cwd=below)

    assert (ended.code, ended.err) == (0, f"{name} is ready again (process {pid_of(fleet, name)}).\n")
    assert is_gone(old)
    assert f"{name} ended with exit code" not in fleet.said()
    assert call("crows.greet", cwd=fleet.folder)["result"] == "hoot"


@pytest.mark.slow
def test_a_module_that_crashes_again_and_again_is_dead_and_the_rest_goes_on(fleet: Up) -> None:
    """It is said on the console and in `status`; when its files change, or on `restart`, it gets another try."""
    sick = fleet.folder / "crows" / "sick"
    sick.touch()
    os.kill(pid_of(fleet, "crows"), signal.SIGKILL)
    wait_until_sync(lambda: fleet.run_file().processes["crows"].state == "dead", "it is given up")

    assert "crows ended 5 times within 60 s, last with exit code 3: it is not started again" in fleet.said()
    assert "7 of 8 ready, crows dead" in run("status", cwd=fleet.folder).out
    assert call("jays.greet", cwd=fleet.folder)["success"]
    assert not call("crows.greet", cwd=fleet.folder)["success"]
    failed = run("restart", "crows", cwd=fleet.folder)
    assert failed.code == 1
    assert failed.err == "crows does not stay alive: `toolfleet logs crows` shows why.\n"

    sick.unlink()
    assert run("restart", "crows", cwd=fleet.folder).code == 0
    assert fleet.process.poll() is None


@pytest.mark.slow
def test_a_slow_module_that_is_added_gets_a_worker(fleet: Up) -> None:
    """Its lane had none; a call that is made as soon as its tools are known waits for it, and is done."""
    with serve(make_module("larks")) as larks:
        added = run("modules", "add", "larks", larks.url, "--slow", cwd=fleet.folder)
        assert added.code == 0, added.err
        wait_until_sync(
            lambda: "larks.echo" in run("tools", "list", cwd=fleet.folder).out, "it was asked what it offers"
        )

        called = run("call", "larks.echo", "word=hoot", "--timeout", "60", cwd=fleet.folder)
        assert called.code == 0, called.err
        assert json.loads(called.out) == {"word": "hoot"}
        assert fleet.said().count("A slow module was added") == 1
        assert fleet.run_file().processes["worker-slow"].state == "ready"
        assert run("modules", "remove", "larks", "--drain", "0", cwd=fleet.folder).code == 0
