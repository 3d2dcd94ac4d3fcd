"""Starts a keeper's command in a sandbox, or without one. Either way it is a process with its output in a pipe."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from modules.sandboxes import linux, owners, sandbox
from modules.sandboxes.view import View


class OpenCommand:
    """A command without a sandbox, as the keeper's user. Raises `OSError` or `SubprocessError`."""

    hidden = 0
    """Processes that stand between the keeper and the command."""

    def __init__(self, job: dict[str, Any], limit: Callable[[], None]) -> None:
        with Path(job["stdin"] or os.devnull).open("rb") as stdin:
            self._process = subprocess.Popen(
                job["argv"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=job["cwd"],
                env=job["env"],
                start_new_session=True,
                preexec_fn=limit,  # noqa: PLW1509 - this process has one thread
            )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.output = self._process.stdout.fileno()

    def exit_code(self, status: int) -> int:
        """What the kernel's `status` of the process means."""
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode


class SandboxedCommand:
    """A command in a sandbox, to which the folders that it may write to belong from now on. Raises as `Sandbox`, and `OSError`."""

    hidden = sandbox.PROCESSES

    def __init__(self, job: dict[str, Any], limit: Callable[[], None]) -> None:
        plan: dict[str, Any] = job["sandbox"]
        owner = owners.lasting_id(plan["owner"])
        if os.geteuid() == 0:
            for folder in plan["writable"]:
                owners.give_away(Path(folder), owner)
        view = View(
            plan["memory_disk_mb"],
            plan["network"],
            readable=tuple(plan["readable"]),
            writable=tuple(plan["writable"]),
        )
        gate = None if job["gate"] is None else socket.socket(fileno=job["gate"])
        if gate is not None:
            gate.set_inheritable(False)  # the program is not to have it
        with Path(job["stdin"] or os.devnull).open("rb") as stdin:

            def run() -> NoReturn:
                limit()
                linux.gain_no_privileges()
                os.chdir(job["cwd"])
                os.execvpe(job["argv"][0], job["argv"], job["env"])  # noqa: S606 - no shell is wanted

            inside = sandbox.Inside(view, run, owner, stdin=stdin.fileno(), one_stream=True, gate=gate)
            self._sandbox = sandbox.Sandbox(inside)
        if gate is not None:
            gate.close()
        self.pid, self.output = self._sandbox.pid, self._sandbox.stdout

    def exit_code(self, status: int) -> int:
        """The command's, not that of the process which made its sandbox."""
        return self._sandbox.exit_code(status)
