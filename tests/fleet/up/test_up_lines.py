"""`toolfleet up` in an empty folder, as a new user has it; then lines come into its `toolfleet.toml`."""

import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

import support.up
from support.command import run
from support.module_server import serve
from support.owls import make_module
from support.servers.plain_http import PLAIN
from support.up import Up, up
from support.waiting import wait_until_sync

_TOOLS = '''"""Tools."""
from toolfleet.sdk import tool

@tool(permission="guest", effect="read")
def greet() -> str:
    """Greet."""
    return "hoot"
'''
_INSTALLED = "import toolfleet_cli.local.modules as e; e.find_examples_folder = lambda: None; "


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet that was started in an empty folder, from an installed wheel: there are no examples. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        command = [*support.up.COMMAND[:2], _INSTALLED + support.up.COMMAND[2]]
        patch.setattr(support.up, "COMMAND", command)
        with up(folder, {"TOOLFLEET_ARTIFACT_STORE": ""}) as running:
            yield running


def calls(fleet: Up, tool: str, *words: str) -> str:
    """What the command prints for a call."""
    ended = run("call", tool, *words, "--timeout", 10, cwd=fleet.folder)
    return ended.out + ended.err


def write(fleet: Up, text: str) -> None:
    (fleet.folder / "toolfleet.toml").write_text(text)


def test_it_starts_without_modules_and_says_how_to_add_one(fleet: Up) -> None:
    """With two commands; the gateway is ready all the same."""
    assert "There are no modules yet." in fleet.said()
    assert "  toolfleet host folder FOLDER " in fleet.said()
    assert "  toolfleet modules add NAME URL " in fleet.said()
    assert "JSON" not in fleet.said()
    assert httpx.get(f"{fleet.run_file().gateway_url}/readyz", verify=PLAIN).status_code == 200


def test_a_module_is_there_within_seconds_of_its_line(fleet: Up) -> None:
    """Added, to a lane that had no worker, moved to another address, and removed: each is said, and no process is lost."""
    beat = fleet.run_file().processes["beat"].pid
    with serve(make_module("owls")) as there:
        with serve(make_module("owls")) as here:
            write(fleet, f'slow_modules = ["owls"]\n[module_services]\nowls = "{here.url}"\n')
            wait_until_sync(lambda: "toolfleet.toml: from now on calls reach owls" in fleet.said(), "it is said")
            wait_until_sync(lambda: "hoot" in calls(fleet, "owls.echo", "word=hoot"), fleet.said())

        write(fleet, f'[module_services]\nowls = "{there.url}"\n')
        wait_until_sync(lambda: "hoot" in calls(fleet, "owls.echo", "word=hoot"), fleet.said())
        write(fleet, "")
        wait_until_sync(lambda: "toolfleet.toml: calls do not reach any more owls" in fleet.said(), "it is said")
        wait_until_sync(lambda: "unknown_module: Unknown module: owls" in calls(fleet, "owls.echo"), fleet.said())
    wait_until_sync(lambda: fleet.run_file().processes["beat"].pid != beat, "beat has the new lines, too")
    assert json.loads(run("status", "--json", cwd=fleet.folder).out)["troubles"] == []


def test_a_host_is_started_and_ended_by_its_line_and_what_cannot_be_is_said_everywhere(fleet: Up) -> None:
    """On the console of `up`, in the call's error, in `status` and `doctor`; the other lines count."""
    tools = fleet.folder / "mine"
    tools.mkdir()
    (tools / "greet.py").write_text(_TOOLS)
    write(fleet, 'log_level = "DEBUG"\n[hosts.crows]\nfolder = "mine"\n[hosts.jays]\nfolder = "nowhere"\n')
    wait_until_sync(lambda: "crows is ready" in fleet.said(), "it is started")
    wait_until_sync(lambda: "hoot" in calls(fleet, "crows.greet"), fleet.said())

    jays = f"[hosts.jays]: There is no tool folder {fleet.folder / 'nowhere'}. Correct that and save toolfleet.toml: it is applied then."
    level = "toolfleet.toml: log_level changed; to apply that, end `toolfleet up` with Ctrl-C, and start it again."
    status = json.loads(run("status", "--json", cwd=fleet.folder).out)
    said = " ".join(run("doctor", cwd=fleet.folder).out.split())
    assert {jays, level} == {*status["not_applied"]}
    assert (jays in fleet.said(), level in fleet.said()) == (True, True)
    assert (jays in said, level in said) == (True, True)
    assert f"unknown_module: Unknown module: jays. {jays}" in calls(fleet, "jays.sing")

    write(
        fleet,
        'scheduler = true\n[hosts.crows]\nfolder = "mine"\n[module_services]\ncrows = "http://127.0.0.1:1"\n',
    )
    wait_until_sync(lambda: "crows" in fleet.run_file().not_applied, fleet.said())
    assert "hoot" in calls(fleet, "crows.greet"), "what is served stays"
    assert "toolfleet.toml: scheduler changed; to apply that, end `toolfleet up`" in calls(fleet, "scheduler.list_jobs")

    write(fleet, "[hosts.crows\n")
    wait_until_sync(lambda: "Until that is corrected, the lines before count." in fleet.said(), "it is said")
    killed = {name: fleet.run_file().processes[name].pid for name in ("worker-fast", "crows")}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)

    def is_back(name: str) -> bool:
        now = fleet.run_file().processes[name]
        return now.state == "ready" and now.pid != killed[name]

    wait_until_sync(lambda: all(map(is_back, killed)), "what is started again reads no broken file")
    write(fleet, "")
    wait_until_sync(lambda: "crows" not in fleet.run_file().processes, fleet.said())
    wait_until_sync(lambda: fleet.run_file().not_applied == {}, "all is applied")
    wait_until_sync(lambda: "unknown_module: Unknown module: crows" in calls(fleet, "crows.greet"), fleet.said())


def test_a_server_that_does_not_start_is_no_secret(fleet: Up) -> None:
    """Its host goes on trying; status, and what the console asks for, name the module and the reason."""
    write(fleet, '[hosts.larks]\ncommand = ["no-such-program-here"]\n')

    def trouble() -> list[tuple[str, str]]:
        found = json.loads(run("status", "--json", cwd=fleet.folder).out)["troubles"]
        return [(one["module"], one["trouble"]) for one in found]

    wait_until_sync(lambda: trouble() == [("larks", "not ready")], fleet.said())
    key = {"Authorization": f"Bearer {(fleet.folder / '.toolfleet' / 'gateway-key').read_text().strip()}"}
    url = f"{fleet.run_file().gateway_url}/operations/modules"
    why = "Its server cannot be served: it ended in the handshake; its host's log says more."

    def rows() -> list[tuple[str, str | None, str | None]]:
        found = httpx.get(url, headers=key, verify=PLAIN).json()["modules"]
        own = [row for row in found if row["module"] != "artifacts"]  # a part of the workers
        return [(row["module"], row.get("trouble"), row.get("reason")) for row in own]

    wait_until_sync(lambda: rows() == [("larks", "not ready", why)], fleet.said())
    assert why in " ".join(run("modules", "list", cwd=fleet.folder).out.split())
    said = " ".join(run("doctor", cwd=fleet.folder).out.split())
    assert f"Module larks is not ready. {why} " in said
    assert "Module 'larks' serves no tools now; `toolfleet tools list --errors` says why." in calls(fleet, "larks.sing")
