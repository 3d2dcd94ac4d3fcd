"""Finds out whether this machine can keep the commands of a module apart, by trying, and says what that means."""

import logging
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from modules.kept_commands import Job, KeptCommand, SandboxPlan

Wanted = Literal["best", "namespaces", "none"]
"""`best`: a sandbox where the machine allows one, and else limits against accidents; `namespaces`: a sandbox in any case."""

Isolation = Literal["namespaces", "none"]

_TRY_SECONDS = 20
_OPEN = "It is NOT in a sandbox: it reaches the network, local services, and all files and processes of the module's own user."
_APART = "It sees no files but its own and the system's programs, and no other processes."

logger = logging.getLogger(__name__)


def isolation_at_start(wanted: Wanted, *, network: bool, module: str) -> Isolation:
    """As `isolation_for`, for a module that starts: its log says what does not protect from programs."""
    isolation = isolation_for(wanted, network=network, module=module)
    if isolation == "none":
        logger.warning("%s: what it starts has no sandbox. %s", module, _OPEN)
    return isolation


def isolation_for(wanted: Wanted, *, network: bool, module: str) -> Isolation:
    """What the machine allows, or what the settings of `module` demand. Raises `RuntimeError` where that is not to be had."""
    if wanted != "none" and _works(network=network):
        return "namespaces"
    if wanted == "namespaces":
        raise RuntimeError(
            f"{module.upper()}_ISOLATION=namespaces: this machine does not allow it. Namespaces take Linux 5.12 and user "
            "namespaces without root (or root)."
        )
    return "none"


def described(isolation: Isolation, *, network: bool) -> str:
    """What a tool's description says of it."""
    return f"{_APART} It has {'access to the' if network else 'no'} network." if isolation == "namespaces" else _OPEN


@cache
def _works(*, network: bool) -> bool:
    if sys.platform != "linux":
        return False
    with TemporaryDirectory() as folder:
        plan = SandboxPlan(owner="", readable=[], writable=[], network=network)
        argv = [sys.executable, "-I", "-S", "-c", ""]
        command = KeptCommand(Path(folder))
        keeper = command.start(
            Job(
                argv=argv,
                cwd="/",
                env={},
                timeout_seconds=_TRY_SECONDS,
                log_bytes=8000,
                processes=2,
                file_bytes=0,
                grace_seconds=0,
                sandbox=plan,
            )
        )
        if keeper is None:
            return False
        keeper.wait()  # it has a deadline of its own
        ending = command.ending()
        return ending is not None and ending.exit_code == 0
