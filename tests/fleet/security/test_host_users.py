"""The programs of hosts read no key of the fleet's, and nothing of other hosts', whoever starts the fleet."""

import json
import os
import secrets
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.command import call
from support.hosts import spy
from support.up import COMMAND, Up, leave_nothing, up
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_modules.hosts import guard
from toolfleet_modules.hosts.child_process import Fence

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives programs a user of their own")

SPY = Path(spy.__file__)
TOML = """
[hosts.nest]
folder = "nest"

[hosts.odd]
command = [{python}, "spy.py"]
env = {{OWN_TOKEN = "{odd}"}}

[hosts.work]
command = [{python}, "../spy.py"]
directory = "work"

[secrets.TOKEN]
file = "token"
"""
FAR = """
[hosts.far]
command = [{python}, "{spy}"]
directory = "/proc/self"
"""
HOSTS = ("tools", "nest", "odd", "work", "other")


@dataclass
class Watched:
    """A fleet with a spy in each host, and what none of them may find. `users`: those that have been seen, by host."""

    fleet: Up
    words: dict[str, str]
    users: dict[str, int] = field(default_factory=dict[str, int])

    def look(self, host: str) -> dict[str, Any]:
        folder = self.fleet.folder
        files = ("toolfleet.toml", "mcp.json", "token", ".toolfleet/gateway-key", ".toolfleet/flower-auth")
        words = ",".join(word for name, word in self.words.items() if name != host)
        asked = [f"words={words}", f"files={','.join(str(folder / each) for each in files)}"]
        result = call(f"{host}.look", *asked, cwd=folder)["result"]
        seen: dict[str, Any] = json.loads(result) if isinstance(result, str) else result
        self.users[host] = seen["user"]
        return seen


def furnished(folder: Path) -> dict[str, str]:
    """A folder with a spy in each host; gives what is secret in it, by the host that may have it."""
    words = {name: f"word-{secrets.token_hex(16)}" for name in ("odd", "other", "token")}
    for path in (".toolfleet/tools", "nest", "work"):
        (folder / path).mkdir(parents=True)
    for path in (".toolfleet/tools/spy.py", "nest/spy.py", "spy.py"):
        (folder / path).write_text(SPY.read_text())
    (folder / "token").write_text(words["token"])
    (folder / "toolfleet.toml").write_text(TOML.format(python=json.dumps(sys.executable), odd=words["odd"]))
    other = {"command": sys.executable, "args": ["spy.py"], "env": {"OTHER_TOKEN": words["other"]}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"other": other}}))
    return words


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The fleet of root, whose key is in its file, as are addresses, whose secrets are in its environment. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    words = furnished(folder) | {"key": secrets.token_hex(32)}
    file = folder / "toolfleet.toml"
    webhooks = '[registry_webhooks]\n"http://127.0.0.1:1/a" = ["removed"]\n'
    far = FAR.format(python=json.dumps(sys.executable), spy=folder / "spy.py")
    file.write_text(
        f'signing_key = "{words["key"]}"\ncore_url = "http://127.0.0.1:1"\n{webhooks}{file.read_text()}{far}'
    )
    wakes = [f"whsec_{b64encode(secrets.token_bytes(32)).decode()}" for _ in range(2)]
    words |= dict(zip(("core", "webhooks"), wakes, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLFLEET_CORE_SECRET", wakes[0])
        patch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS_SECRET", wakes[1])
        with up(folder) as fleet:
            kept = {name: (folder / ".toolfleet" / name).read_text().strip() for name in ("gateway-key", "flower-auth")}
            yield Watched(fleet, words | kept)


@pytest.mark.parametrize("host", HOSTS)
def test_a_hosts_programs_find_nothing_that_is_not_theirs(watched: Watched, host: str) -> None:
    """Each host has a user of its own, which reads neither keys, nor settings, nor what other programs were given."""
    assert watched.look(host)["found"] == []
    for each in set(HOSTS) - watched.users.keys():
        watched.look(each)
    others = {user for each, user in watched.users.items() if each != host}
    assert watched.users[host] not in {0, *others}


@pytest.mark.parametrize(
    ("host", "path", "may"),
    [
        ("tools", ".toolfleet/tools/note", True),
        ("nest", "nest/note", True),
        ("work", "work/note", True),
        ("odd", "note", True),
        ("nest", "work/note", False),
        ("work", "nest/note", False),
        ("nest", "toolfleet.toml", False),
        ("odd", "toolfleet.toml", False),
        ("odd", ".toolfleet/gateway-key", False),
    ],
)
def test_a_program_writes_where_it_is_at_work(watched: Watched, host: str, path: str, may: bool) -> None:
    """That is its host's folder or directory; its files there belong to whoever that belongs to."""
    file = watched.fleet.folder / path
    before = file.read_bytes() if file.exists() else None
    said = call(f"{host}.write", f"path={file}", cwd=watched.fleet.folder)

    assert "written" in str(said["result"]) or not may, said
    assert (file.read_bytes() if file.exists() else None) == (b"written" if may else before)
    assert not may or file.stat().st_uid == 0


def test_what_cannot_be_kept_apart_is_said_once(watched: Watched) -> None:
    """A folder that is closed to all others, with a file system below that knows no other owner, is root's to serve."""
    said = [line for line in watched.fleet.said().splitlines() if "run as root" in line]

    assert [line.partition(" run as root")[0].rpartition(" ")[2] for line in said] == ["far"]
    assert "toolfleet.toml, .toolfleet/gateway-key, and the `env` of other hosts' programs" in said[0]


def test_settings_that_are_replaced_stay_hidden(watched: Watched) -> None:
    """An editor puts a new file in the place of the old one: programs that work beside it are started anew."""
    file = watched.fleet.folder / "toolfleet.toml"
    draft = file.with_name("draft")
    draft.write_text(file.read_text())
    draft.replace(file)
    wait_until_sync(lambda: "was replaced" in watched.fleet.said(), "the fleet has seen it")
    said = watched.fleet.said
    wait_until_sync(lambda: said().count("odd is ready") == said().count("other is ready") == 2, "they are back")

    assert [watched.look(host)["found"] for host in ("odd", "other", "nest")] == [[], [], []]
    assert file.stat().st_mode & 0o007 == 0


def test_a_fleet_of_another_user_hides_its_key_and_says_what_it_cannot_hide(tmp_path: Path) -> None:
    """A key that only the environment of `up` has is in no process that a tool can read: `up`, Flower, the gateway, and the rest."""
    words = furnished(tmp_path)
    (tmp_path / "mcp.json").unlink()
    (tmp_path / "toolfleet.toml").unlink()
    (tmp_path / "token").unlink()
    key = secrets.token_hex(32)
    own = tmp_path / "own"
    own.mkdir()
    paths = Fence(user=65_534, writable=(tmp_path,), readable=(SPY.parents[3],)).paths(own)
    output = tmp_path / "up.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            guard.run_command(os.getpid(), {"user": 65_534}, paths, [*COMMAND, "up"]),
            cwd=tmp_path,
            env={**os.environ, "HOME": str(own), "TMPDIR": str(own), "TOOLFLEET_SIGNING_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    fleet = Up(tmp_path, process, output)
    try:
        wait_until_sync(
            lambda: "The fleet is up." in fleet.said(), f"it is up\n{fleet.said()}", seconds=4 * PATIENCE_SECONDS
        )
        watched = Watched(fleet, words | {"key": key})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOLFLEET_SIGNING_KEY", key)
            seen = watched.look("tools")
    finally:
        leave_nothing(process)

    assert (seen["found"], seen["user"]) == ([], 65_534)
    assert fleet.said().count("The programs of hosts run as your user, and can read what you can") == 1


def test_a_programs_own_folder_may_lie_in_a_closed_one(tmp_path: Path) -> None:
    """Also next to what it reads there: the mount that shows this covers its own folder's path."""
    user, own, data = 61_184, tmp_path / "own", tmp_path / "data"
    tmp_path.chmod(0o700)
    for folder in (own, data):
        folder.mkdir()
    (data / "note").write_text("owls")
    paths = Fence(user=user, readable=(data,)).paths(own)
    shell = ["/bin/sh", "-c", f"echo mine > {own}/file && cat {data}/note"]
    command = guard.run_command(os.getpid(), {"user": user}, paths, shell)
    tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd=own)

    assert (tried.returncode, tried.stdout) == (0, "owls"), tried.stderr
    assert (own / "file").stat().st_uid == user
