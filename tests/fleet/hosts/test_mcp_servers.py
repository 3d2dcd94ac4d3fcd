"""MCP servers in a whole fleet: real ones from the package index are modules, with one table each."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.documents import programs
from support.hosts.odd_server import Answer, OddServer, odd_http
from support.up import Up, call, toolfleet, up
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.config.run_file import find_run_file

BIN = Path(sys.executable).parent
SETTINGS = programs("docs/guides/mcp-servers.md")["mcp-servers"]
ERROR = '{"jsonrpc": "2.0", "id": %d, "error": {"code": -31901, "message": "the card was charged in session 5"}}'
CHARGES = {
    "error": Answer(200, ERROR),
    "session": Answer(500, ERROR),
    "lost": Answer(404, "the card was charged"),
    "away": Answer(502, "the card was charged"),
    "broken": None,
}
ODD: list[OddServer] = []


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with two servers, one of them over a repository. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    repository = folder / "nest"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@owls.test"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (repository / "egg.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Lay an egg"], check=True)
    with odd_http(CHARGES) as (odd, _):
        (folder / "toolfleet.toml").write_text(f'{SETTINGS}\n[hosts.odd]\nurl = "{odd.url}"\n')
        with up(folder, {"PATH": f"{BIN}:{os.environ['PATH']}"}, "--no-gateway") as running:
            ODD.append(odd)
            yield running


def test_a_servers_tools_are_listed_with_their_effects(fleet: Up) -> None:
    """What a server says of repeated calls counts if the settings trust it, and else each call is for once."""
    listed = json.loads(toolfleet("tools", "list", "--json", cwd=fleet.folder).stdout)
    effects = {tool["name"]: tool["effect"] for tool in listed}

    assert effects["clock.convert_time"] == "once"
    assert (effects["git.git_log"], effects["git.git_commit"]) == ("read", "once")


def test_calls_do_real_work(fleet: Up) -> None:
    """A call goes to the server, and its text comes back; what the server refuses is a failure in its words."""
    now = call("clock.get_current_time", "timezone=Europe/Berlin", cwd=fleet.folder)
    log = call("git.git_log", "repo_path=nest", cwd=fleet.folder)
    wrong = toolfleet("call", "clock.get_current_time", "timezone=Owl/Nest", "--json", cwd=fleet.folder)

    assert "Europe/Berlin" in json.dumps(now["result"])
    assert "Lay an egg" in json.dumps(log["result"])
    assert "Owl/Nest" in wrong.stdout + wrong.stderr


@pytest.mark.parametrize("tool", CHARGES)
async def test_a_server_that_fails_after_its_effect_has_it_once(fleet: Up, owner: Caller, tool: str) -> None:
    """However it answers: nobody has said that such a call may be repeated, and nobody hears that nothing has happened."""
    run_file = find_run_file(fleet.folder)
    assert run_file is not None
    async with ToolFleet(run_file.settings["redis_url"]) as agent:
        ended = await agent.call(ToolCall(tool_name=f"odd.{tool}"), owner)

    assert (ended.success, ended.effect_state, ended.retryable) == (False, "unknown", False)
    assert ("the card was charged" in str(ended.error)) == (tool != "broken")
    assert ODD[-1].executed[tool] == 1


@pytest.mark.slow
def test_the_settings_with_secrets_are_read(tmp_path: Path) -> None:
    """A place for a secret in a header is filled from where the settings say, and shown nowhere."""
    (tmp_path / "toolfleet.toml").write_text(programs("docs/guides/mcp-servers.md")["mcp-secrets"])
    missing = toolfleet("host", "run", "issues", cwd=tmp_path)

    assert missing.returncode == 2
    assert "issues-token" in missing.stderr
