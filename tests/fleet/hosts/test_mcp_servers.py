"""MCP servers in a whole fleet: real ones from the package index are modules, with one table each."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.up import Up, call, toolfleet, up

BIN = Path(sys.executable).parent


def toml(repository: Path) -> str:
    return f"""
[hosts.clock]
command = ["{BIN / "mcp-server-time"}"]

[hosts.git]
command = ["{BIN / "mcp-server-git"}", "--repository", "{repository}"]
trusted = true
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with two servers, one of them over a repository. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    repository = folder / "nest"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@owls.test"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True, timeout=30)
    (repository / "egg.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True, timeout=30)
    subprocess.run([*git, "commit", "-q", "-m", "Lay an egg"], check=True, timeout=30)
    (folder / "toolfleet.toml").write_text(toml(repository))
    with up(folder, None) as running:
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
    log = call("git.git_log", f"repo_path={fleet.folder / 'nest'}", cwd=fleet.folder)
    wrong = toolfleet("call", "clock.get_current_time", "timezone=Owl/Nest", "--json", cwd=fleet.folder)

    assert "Europe/Berlin" in json.dumps(now["result"])
    assert "Lay an egg" in json.dumps(log["result"])
    assert "Owl/Nest" in wrong.stdout + wrong.stderr
