"""A process behind a front, started for one deployment."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from modules.command_isolation import isolation_for
from modules.deployer.health import is_healthy
from modules.deployer.plan import Declaration
from modules.deployer.settings import DeployerSettings
from modules.gate import LOOPBACK, Gate
from modules.kept_commands import Job, KeptCommand, SandboxPlan

_KEEPER_SECONDS = 8.0  # longer than a keeper takes to end what does not want to end

_FILES = "files"  # in the folder of a run


class ProcessBackend:
    """Runs a declared command in a copy of its release, under a keeper that ends it when this process is gone.

    In a sandbox, where the machine allows one: there it has a network of its own, into which only `connect` leads. It gets an
    environment of its own, and a folder to write to that its deployment keeps. What it changes in its copy is gone at its end,
    and the release is as it was.
    """

    def __init__(
        self, declaration: Declaration, release: Path, run: Path, data: Path, settings: DeployerSettings
    ) -> None:
        self._port = 0
        self._gate: Gate | None = None
        self._declaration = declaration
        self._release = release
        self._command = KeptCommand(run)
        self._files = run / _FILES
        self._data = data
        self._settings = settings
        self._keeper: subprocess.Popen[bytes] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the command; whether it listens, its health says. Raises `OSError`."""
        self._port = _free_port()
        # A thread cannot be cancelled: if we are, `stop` waits for what it starts.
        self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        await asyncio.shield(self._starting)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the command's port. Raises `OSError`."""
        if self._gate is not None:
            return await self._gate.connect(self._port)
        return await asyncio.open_connection(LOOPBACK, self._port)

    def why_ended(self) -> str | None:
        """`None` while it runs; else a sentence."""
        if self._keeper is None or self._keeper.poll() is None:
            return None
        ending = self._command.ending()
        if ending is None or ending.why in {"lost", "failed", "cancelled"}:
            return "What looked after it was killed."
        if ending.why == "ended":
            return f"It ended with exit code {ending.exit_code}."
        return "It could not be started." if ending.why == "not_started" else "It had too many processes and was ended."

    async def is_healthy(self) -> bool:
        """Whether it answers as it should, within `health_seconds`."""
        return await is_healthy(self, self._declaration.health, seconds=self._settings.health_seconds)

    async def stop(self) -> None:
        """End it, with all that it has started."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        await asyncio.to_thread(self._stop)
        if self._gate is not None:
            await self._gate.close()

    def _start(self) -> None:
        self._command.folder.mkdir(mode=0o700, parents=True)
        shutil.copytree(self._release, self._files)
        (self._data / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = self._settings
        job = Job(
            argv=[word.replace("{port}", str(self._port)) for word in self._declaration.command],
            cwd=str(self._files),
            env=self._environment(),
            timeout_seconds=None,
            log_bytes=settings.log_bytes,
            processes=settings.processes,
            file_bytes=settings.file_mb * 2**20,
            memory_bytes=None if settings.memory_mb is None else settings.memory_mb * 2**20,
            grace_seconds=settings.grace_seconds,
            end_with_parent=True,
            sandbox=self._sandbox(),
        )
        if job.sandbox is None or job.sandbox.network:
            self._keeper = self._command.start(job)
        else:
            self._gate = gate = Gate()
            self._keeper = self._command.start(job, gate.theirs)
            gate.theirs.close()  # so that ours says when the program has ended

    def _sandbox(self) -> SandboxPlan | None:
        settings = self._settings
        if isolation_for(settings.isolation, network=settings.network, module="deployer") == "none":
            return None
        return SandboxPlan(
            owner=str(self._data),  # for every release's process: one may still serve while the next one starts
            readable=[str(path) for path in settings.readable],
            writable=[str(self._files), str(self._data)],
            network=settings.network,
        )

    def _environment(self) -> dict[str, str]:
        """All that it knows of its surroundings; nothing of the module's environment."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
        own = {"PORT": str(self._port), "HOST": LOOPBACK, "HOME": str(self._data), "TMPDIR": str(self._data / "tmp")}
        return {**own, "PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def _stop(self) -> None:
        if self._keeper is not None:
            self._stop_keeper(self._keeper)
        shutil.rmtree(self._files, ignore_errors=True)

    def _stop_keeper(self, keeper: "subprocess.Popen[bytes]") -> None:
        if keeper.stdin is not None:
            keeper.stdin.close()  # upon which it ends the command and itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(self._settings.grace_seconds + _KEEPER_SECONDS)
        if keeper.poll() is None:
            keeper.kill()
            keeper.wait()
        self._command.state()  # which ends what a killed keeper has left behind


def _free_port() -> int:
    """A port that is free at this moment. Should another take it first, the process ends, and the next one is tried."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])
