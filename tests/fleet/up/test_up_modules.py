"""`toolfleet up` with modules that somebody develops: their trouble on its console, their reload and restarts."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import call, run
from support.module_server import serve
from support.owls import make_module
from support.processes import is_gone
from support.up import Up, up
from support.waiting import wait_until_sync

_MAIN = '''"""A module."""
import pathlib, sys
from toolfleet.sdk import Module

module = Module("{name}")
if (pathlib.Path(__file__).parent / "sick").exists():
    sys.exit(3)

@module.tool(permission="guest", effect="read")
async def greet() -> str:
    """Greet."""
    return "hoot"

@module.tool(permission="guest", effect="read")
async def boom() -> str:
    """Fail."""
    raise ValueError("feathers")

app = module.app
'''


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with two modules of our own, which are reloaded. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("owls", "crows"):
        (folder / name).mkdir()
        (folder / name / "main.py").write_text(_MAIN.format(name=name))
    with up(folder, None, "--module", "owls", "--module", "crows", "--reload", "--no-gateway") as running:
        yield running


def pid_of(fleet: Up, name: str) -> int:
    return fleet.run_file().processes[name].pid


def test_its_processes_and_what_they_do_are_in_the_run_file(fleet: Up) -> None:
    """By name, as the other commands find them. There is no gateway that was not wanted."""
    processes = fleet.run_file().processes

    assert set(processes) == {"redis", "owls", "crows", "beat", "flower", "worker-fast"}
    assert {process.pid for process in processes.values()} <= set(fleet.processes())


def test_it_prints_what_an_agent_elsewhere_must_set(fleet: Up, tmp_path: Path) -> None:
    """A line to copy, with the address of its Redis: with nothing else its modules are known there, and called."""
    exports = [line.split()[1].split("=", 1) for line in fleet.said().splitlines() if line.startswith("  export ")]
    env = dict(exports)
    assert env == {"TOOLFLEET_REDIS_URL": fleet.run_file().settings["redis_url"]}

    called = run("call", "crows.greet", "--timeout", "40", cwd=tmp_path, env=env)
    assert (called.code, called.out) == (0, "hoot\n"), called.err
    status = json.loads(run("status", "--json", cwd=tmp_path, env=env).out)
    assert [(lane["lane"], len(lane["workers"]), lane["modules"]) for lane in status["lanes"]] == [
        ("fast", 1, ["crows", "owls"]),
        ("slow", 0, []),
    ]
    assert (status["troubles"], status["dead_letters"], status["processes"]) == ([], 0, {})


def test_a_modules_traceback_is_on_the_console(fleet: Up) -> None:
    """With the module's name before each line; what is no trouble stays in the log."""
    assert not call("owls.boom", cwd=fleet.folder)["success"]

    wait_until_sync(lambda: "owls | ValueError: feathers" in fleet.said(), f"it is shown\n{fleet.said()}")
    assert "owls | ERROR: toolfleet.sdk: owls.boom failed" in fleet.said()
    assert 'owls |     raise ValueError("feathers")' in fleet.said()
    assert "POST /execute" not in fleet.said()
    assert "POST /execute" in fleet.log("owls")


def test_a_module_whose_files_change_is_restarted_alone(fleet: Up) -> None:
    """On the port that it had; agents get what it offers now, and nobody asks for a refresh."""
    before, services = fleet.run_file().processes, fleet.run_file().settings["module_services"]
    main = fleet.folder / "owls" / "main.py"
    main.write_text(main.read_text().replace('return "hoot"', 'return "toowit"').replace("Greet.", "Say something."))

    def is_new() -> bool:
        return "Say something." in run("tools", "show", "owls.greet", cwd=fleet.folder).out

    wait_until_sync(is_new, f"the new one is offered\n{fleet.said()}")
    assert call("owls.greet", cwd=fleet.folder)["result"] == "toowit"
    after = fleet.run_file().processes
    assert [name for name in before if before[name].pid != after[name].pid] == ["owls"]
    assert fleet.run_file().settings["module_services"] == services
    assert "owls has changed and is restarted" in fleet.said()


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
    assert "5 of 6 ready, crows dead" in run("status", cwd=fleet.folder).out
    assert call("owls.greet", cwd=fleet.folder)["success"]
    assert not call("crows.greet", cwd=fleet.folder)["success"]
    failed = run("restart", "crows", cwd=fleet.folder)
    assert failed.code == 1
    assert failed.err == "crows does not stay alive: `toolfleet logs crows` shows why.\n"

    sick.unlink()
    assert run("restart", "crows", cwd=fleet.folder).code == 0
    assert fleet.process.poll() is None


@pytest.mark.slow
def test_a_slow_module_that_is_added_gets_a_worker(fleet: Up) -> None:
    """Its lane had none; a call made at once waits for it, and is done."""
    with serve(make_module("larks")) as larks:
        added = run("modules", "add", "larks", larks.url, "--slow", cwd=fleet.folder)
        assert added.code == 0, added.err

        called = run("call", "larks.echo", "word=hoot", "--timeout", "60", cwd=fleet.folder)
        assert (called.code, json.loads(called.out)) == (0, {"word": "hoot"}), called.err
        assert fleet.said().count("A slow module was added") == 1
        assert fleet.run_file().processes["worker-slow"].state == "ready"
        assert run("modules", "remove", "larks", "--drain", "0", cwd=fleet.folder).code == 0
