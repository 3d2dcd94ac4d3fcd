"""Finds out how well this machine can keep programs apart, by trying."""

import json
import logging
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Literal

from modules.code_executor.limits import Limits

Isolation = Literal["namespaces", "user", "none"]
"""`namespaces`: a sandbox. `user`: an own user id each, which only root can give. `none`: limits against accidents."""

LAUNCHER = Path(__file__).with_name("launcher.py")
_TRY_SECONDS = 20
_STEPS: tuple[Isolation, ...] = ("namespaces", "user", "none")
_WORDS: dict[Isolation, str] = {
    "namespaces": "It sees no files but its own and the system's programs, and no other processes; /tmp, /var/tmp and /dev/shm are "
    "its own, and end with it.",
    "user": "It is NOT in a sandbox: it runs as a user of its own, but reaches the network, local services and whatever every "
    "user of the machine may read.",
    "none": "It is NOT in a sandbox: it reaches the network, local services, and all files and processes of the module's own user. "
    "One program runs at a time.",
}

logger = logging.getLogger(__name__)


def isolation_for(limits: Limits) -> Isolation:
    """The best that there is, or what the settings demand. Raises `RuntimeError` where that is not to be had."""
    wanted = _STEPS if limits.isolation == "best" else (limits.isolation,)
    for isolation in wanted:
        if isolation == "none" or _works(isolation, network=limits.network):
            if isolation != "namespaces":
                logger.warning("run_python: %s", _WORDS[isolation])
            return isolation
    raise RuntimeError(f"CODE_EXECUTOR_ISOLATION={limits.isolation}: this machine does not allow it. {_NEEDS}")


def described(isolation: Isolation, *, network: bool) -> str:
    """What the tool's description says of it."""
    if isolation != "namespaces":
        return _WORDS[isolation]
    return f"{_WORDS[isolation]} It has {'access to the' if network else 'no'} network."


def where_saved(isolation: Isolation) -> str:
    """Where a program saves what is to become its user's, in the words of the tool's description."""
    return "in 'output/' there, or in /tmp," if isolation == "namespaces" else "in 'output/' there"


_NEEDS = "Namespaces take Linux 5.12 and user namespaces without root (or root); own user ids take root."


@cache
def _works(isolation: Isolation, *, network: bool) -> bool:
    if sys.platform != "linux" or (isolation == "user" and os.geteuid() != 0):
        return False
    limits = Limits(network=network).model_dump()
    job = {"code": "", "files": {}, "limits": limits, "most_bytes": 0, "isolation": isolation}
    reading, writing = os.pipe()  # its input stays open until it has answered: closed, it means that nobody waits
    try:
        os.write(writing, json.dumps(job).encode() + b"\n")
        argv = [sys.executable, "-I", "-S", str(LAUNCHER)]
        env = {"PATH": os.defpath, "TMPDIR": gettempdir()}
        done = subprocess.run(argv, stdin=reading, capture_output=True, env=env, timeout=_TRY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    finally:
        os.close(reading)
        os.close(writing)
    return bool(done.stdout) and json.loads(done.stdout)["exit_code"] == 0
