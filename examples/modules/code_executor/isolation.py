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

from modules.code_executor.leftovers import SHARED
from modules.code_executor.limits import Limits

Isolation = Literal["namespaces", "user with mounts", "user with landlock", "user", "landlock", "none"]
"""`namespaces`: a sandbox. `user`: an own user id each, which only root can give, and if it can be had, shared folders of its own
or refused. `landlock`: the module's user, whose files the kernel refuses. `none`: limits against accidents."""

ALONE: frozenset[Isolation] = frozenset({"user", "landlock", "none"})
"""With these one program runs at a time, and what is left of it is removed before the next."""

LAUNCHER = Path(__file__).with_name("launcher.py")
_TRY_SECONDS = 20
_STEPS: dict[str, tuple[Isolation, ...]] = {
    "best": ("namespaces", "user with mounts", "user with landlock", "user", "landlock"),
    "namespaces": ("namespaces",),
    "user": ("user with mounts", "user with landlock", "user"),
    "landlock": ("landlock",),
    "none": ("none",),
}
_OPEN = "It is NOT in a sandbox: it "
_SHARED = " and ".join((", ".join(SHARED[:-1]), SHARED[-1]))
_OWN = f"{_SHARED} are its own, and end with it."
_REFUSED = f"It sees no files but its own and the system's programs; {_SHARED} are not writable."
_WORDS: dict[Isolation, str] = {
    "namespaces": f"It sees no files but its own and the system's programs, and no other processes; {_OWN}",
    "user with mounts": f"{_OPEN}runs as a user of its own, but reaches the network, local services and whatever every user of the "
    f"machine may read. {_OWN}",
    "user with landlock": f"{_OPEN}runs as a user of its own, but reaches the network and local services. {_REFUSED}",
    "user": f"{_OPEN}runs as a user of its own, but reaches the network, local services and whatever every user of the machine may "
    f"read. What it leaves in {_SHARED} is removed. One program runs at a time.",
    "landlock": f"{_OPEN}reaches the network, local services and the processes of the module's own user. {_REFUSED} "
    "One program runs at a time.",
    "none": f"{_OPEN}reaches the network, local services, and all files and processes of the module's own user. What it leaves in "
    f"{_SHARED} stays there for others. One program runs at a time.",
}

logger = logging.getLogger(__name__)


def isolation_for(limits: Limits) -> Isolation:
    """The best that there is, or what the settings demand. Raises `RuntimeError` where that is not to be had."""
    for isolation in _STEPS[limits.isolation]:
        if isolation == "none" or _works(isolation, network=limits.network):
            if isolation != "namespaces":
                logger.warning("code_executor, of each program: %s", _WORDS[isolation])
            return isolation
    raise RuntimeError(f"CODE_EXECUTOR_ISOLATION={limits.isolation}: this machine does not allow it. {_NEEDS}")


def described(isolation: Isolation, *, network: bool) -> str:
    """What the tools' descriptions say of it."""
    if isolation != "namespaces":
        return _WORDS[isolation]
    return f"{_WORDS[isolation]} It has {'access to the' if network else 'no'} network."


def where_saved(isolation: Isolation) -> str:
    """Where a program saves what is to become its user's, in the words of the tools' descriptions."""
    return (
        "in 'output/' there, or in /tmp," if isolation in {"namespaces", "user with mounts"} else "in 'output/' there"
    )


_NEEDS = (
    "Namespaces take Linux 5.12 and user namespaces without root (or root); own user ids take root; Landlock takes Linux 5.13. "
    "CODE_EXECUTOR_ISOLATION=none runs programs, one at a time, where nothing keeps one user's from what another's has left."
)


@cache
def _works(isolation: Isolation, *, network: bool) -> bool:
    if sys.platform != "linux" or (isolation.startswith("user") and os.geteuid() != 0):
        return False
    limits = Limits(network=network).model_dump()
    job = {
        "language": "python",
        "code": "",
        "files": {},
        "limits": limits,
        "most_bytes": 0,
        "isolation": isolation,
        "alone": False,
    }
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
