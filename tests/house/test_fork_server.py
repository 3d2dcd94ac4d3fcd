"""The process that starts tests' programs with their imports done: one for all that share a run, and gone with the last of them."""

import sys
from pathlib import Path

import psutil
import pytest

from support.processes import is_gone
from support.programs import fork_server
from support.programs.fork_server import Fork, ForkServer
from support.waiting import PATIENCE_SECONDS, wait_until_sync

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere programs start as they do for users")
SERVES = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]


@pytest.fixture(autouse=True)
def _own_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody else of this run shares it."""
    monkeypatch.setattr(fork_server, "_RUN", "a run")
    monkeypatch.setattr(fork_server, "_PREFIX", f"{tmp_path.name}-{id(tmp_path)}/")


def fork(client: ForkServer, folder: Path, *words: str) -> Fork:
    with (folder / "said").open("wb") as output:
        return client.start(words, {"PATH": "/bin"}, str(folder), output, output)


def test_clients_share_it_until_the_last_one_leaves(tmp_path: Path) -> None:
    """Each one's programs end with their client, and nobody else's; each hears how its own have ended."""
    first, second = ForkServer("uvicorn"), ForkServer("uvicorn")
    short = fork(second, tmp_path, sys.executable, "-m", "calendar", "none")
    ours, theirs = fork(first, tmp_path, *SERVES), fork(second, tmp_path, *SERVES)
    (server,) = {psutil.Process(each.pid).ppid() for each in (ours, theirs)}

    assert short.wait(PATIENCE_SECONDS) == 2
    first.close()
    wait_until_sync(lambda: is_gone(ours.pid), "its program has ended")
    assert not is_gone(theirs.pid)
    assert server not in {each.pid for each in psutil.Process().children(recursive=True)}
    second.close()
    wait_until_sync(lambda: is_gone(theirs.pid) and is_gone(server), "nothing is left")
