"""A real RabbitMQ server of a test's own, from Debian's package, without root's rights and without the system's service."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from amqp.exceptions import NotFound
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.redis_server import LOOPBACK, held_port
from toolfleet_modules.hosts.child_process import spawn, stop

# Not the command in /usr/sbin, which changes to the package's user, folder and cookie.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SERVER.with_name("rabbitmqctl")
EPMD = Path("/usr/bin/epmd")
START_SECONDS = 60  # 5 on an idle machine
STOP_SECONDS = 20
_CONTROL_SECONDS = 60  # for one order: 1 on an idle machine


def is_installed() -> bool:
    """Whether Debian's package `rabbitmq-server` is here."""
    return SERVER.exists() and EPMD.exists()


@dataclass
class RabbitMq:
    """A server that can be stopped, started again with what it kept, and frozen."""

    folder: Path
    port: int
    distribution_port: int
    names_port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}//"

    def start(self) -> None:
        """Call it in the main thread, for the server ends with the thread that started it; then `wait_until_ready`."""
        with (self.folder / "rabbitmq.log").open("ab") as output:
            self._process = spawn([SERVER], env=self.environment, cwd=self.folder, output=output)

    def wait_until_ready(self) -> None:
        """Return when it takes connections."""
        process = self._process
        assert process is not None
        ready = f"RabbitMQ is ready; its log is in {self.folder}"
        wait_until_sync(lambda: self.answers() or process.poll() is not None, ready, seconds=START_SECONDS)
        assert process.poll() is None, ready

    def stop(self) -> None:
        """End it with all that it started: Erlang's helpers live in sessions of their own."""
        if self._process is not None:
            with self._helpers_ended():
                stop(self._process, patience_seconds=STOP_SECONDS)
            self._process = None

    def kill(self) -> None:
        """End it at once, and without a word to anybody."""
        assert self._process is not None
        with self._helpers_ended():
            self._process.kill()
            self._process.wait()
        self._process = None

    @asynccontextmanager
    async def away(self, *, at_once: bool = False) -> AsyncGenerator[None]:
        """It is ended, and then started again with what it kept."""
        await asyncio.to_thread(self.kill if at_once else self.stop)
        try:
            yield
        finally:
            self.start()
            await asyncio.to_thread(self.wait_until_ready)

    @contextmanager
    def frozen(self) -> Generator[None]:
        """It does not move; its connections stay open, and new ones come about as far as the kernel is concerned."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.thaw()

    def thaw(self) -> None:
        """Let it move again, whoever has frozen it."""
        os.kill(self.pid, signal.SIGCONT)

    def close_connections(self, reason: str) -> None:
        """Have it close the connections of all its clients, and say why."""
        self._order("close_all_connections", reason)

    def connections_made(self) -> int:
        """How many it has taken so far, as its log says."""
        return (self.folder / "rabbitmq.log").read_text().count("accepting AMQP connection")

    def kept(self) -> dict[str, int]:
        """How many messages each queue has, those in workers' hands among them."""
        lines = self._order("list_queues", "--quiet", "--no-table-headers", "name", "messages").splitlines()
        return {name: int(count) for name, count in (line.rsplit(maxsplit=1) for line in lines)}

    @property
    def pid(self) -> int:
        """The server's process id, while it is started."""
        assert self._process is not None
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """Own ports, own node, own cookie (it lies in HOME), and no file of the system's."""
        return {
            "HOME": str(self.folder),
            **self.names_environment,
            "RABBITMQ_NODENAME": "owls@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "no_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
            # The script becomes the server instead of watching over it: its process id is the one to stop and to freeze.
            "RUNNING_UNDER_SYSTEMD": "1",
        }

    @property
    def names_environment(self) -> dict[str, str]:
        """Where Erlang's name server is."""
        return {"ERL_EPMD_ADDRESS": LOOPBACK, "ERL_EPMD_PORT": str(self.names_port)}

    def answers(self) -> bool:
        """Whether it takes a connection now."""
        try:
            with Connection(self.url, connect_timeout=1) as connection:
                connection.ensure_connection(max_retries=0)
        except OperationalError:
            return False
        return True

    def waiting(self, queue: str) -> int:
        """How many messages lie in the queue and are in no worker's hands."""
        with Connection(self.url, connect_timeout=5) as connection:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)

    def consumers(self, queue: str) -> int:
        """How many workers' connections take messages out of the queue; one that was killed gives back what it had, and is none then."""
        with Connection(self.url, connect_timeout=5) as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).consumer_count)
            except NotFound:
                return 0

    def purge(self, queue: str) -> None:
        """Drop what lies in the queue, if there is one."""
        with Connection(self.url, connect_timeout=5) as connection, contextlib.suppress(NotFound):
            connection.default_channel.queue_purge(queue)

    def _order(self, *words: str) -> str:
        """Have Erlang's own tool ask it; raises `subprocess.SubprocessError` if it does not obey, or not in time."""
        ran = subprocess.run(
            [CONTROL, *words],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_CONTROL_SECONDS,
            check=True,
        )
        return ran.stdout

    @contextmanager
    def _helpers_ended(self) -> Generator[None]:
        assert self._process is not None
        helpers: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            helpers = psutil.Process(self._process.pid).children(recursive=True)
        yield
        for helper in helpers:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()


@contextmanager
def rabbitmq(folder: Path) -> Generator[RabbitMq]:
    """Run RabbitMQ with its data in `folder`; nothing of it is left at the end."""
    with ExitStack() as stack:
        port, distribution_port, names_port = (stack.enter_context(held_port()) for _ in range(3))
        server = RabbitMq(folder, port, distribution_port, names_port)
        # Ours, in the foreground: the server would else start one that stays for ever.
        names = spawn([EPMD], env=server.names_environment, cwd=folder, output=subprocess.DEVNULL)
        stack.callback(stop, names, patience_seconds=STOP_SECONDS)
        wait_until_sync(lambda: _listens(names_port), "Erlang's name server listens")
        stack.callback(server.stop)
        server.start()
        server.wait_until_ready()
        yield server


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True
