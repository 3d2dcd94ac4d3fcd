"""Calls the kernel for what Python 3.11 has no words for: namespaces, mounts, capabilities. Raises `OSError`."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

NEW_MOUNTS = 0x00020000  # unshare(2)
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_USERS = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

READ_ONLY = 1  # mount_setattr(2)
NO_SETUID = 2
_RECURSIVE = 0x8000
_HERE = -100
_MOUNT_SETATTR = 442  # the same number on every architecture

_BIND = 0x1000  # mount(2)
_PRIVATE = 0x40000 | 0x4000  # and all below it
_BIND_ALL = _BIND | 0x4000
_DETACH = 2

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES = 64  # more than any kernel has
_CAPSET_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("users", ctypes.c_uint64),
    )


def unshare(namespaces: int) -> None:
    """Leave the parent's namespaces; a new one of processes is for children."""
    _check(_libc.unshare(namespaces), "unshare")


def keep_mounts_private() -> None:
    """What is mounted from now on is seen in this namespace only."""
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None), "mount private")


def mount(kind: str, target: str, options: str = "", *, flags: int = 0) -> None:
    """Mount a new file system of the kind."""
    name, data = kind.encode(), options.encode() or None
    _check(_libc.mount(name, target.encode(), name, ctypes.c_ulong(flags), data), f"mount {kind}")


def bind(source: str, target: str) -> None:
    """Show `source`, with what is mounted below it, at `target` too."""
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_BIND_ALL), None), "bind")


def restrict(target: str, attributes: int, *, recursive: bool = True) -> None:
    """Take rights from a mount, and from those below it."""
    wanted = _Attributes(attributes, 0, 0, 0)
    flags = ctypes.c_uint(_RECURSIVE if recursive else 0)
    path, size = os.fsencode(target), ctypes.c_size_t(ctypes.sizeof(wanted))
    number, here = ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_HERE)
    _check(_libc.syscall(number, here, path, flags, ctypes.byref(wanted), size), f"restrict {target}")


def make_root_of_this_folder() -> None:
    """The working folder, a mount, becomes the root; what was the root is out of reach."""
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount the old root")
    os.chdir("/")


def call(number: int, *arguments: int | bytes | None) -> int:
    """Call the kernel by number. What is not negative is its answer."""
    words = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    answer = int(_libc.syscall(ctypes.c_long(number), *words))
    _check(min(answer, 0), f"system call {number}")
    return answer


def drop_capabilities() -> None:
    """For good: neither this process nor what it starts has or gets any."""
    for capability in range(_CAPABILITIES):
        if prctl(_PR_CAPBSET_DROP, capability) != 0:
            break
    header = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "capset")
    gain_no_privileges()


def gain_no_privileges() -> None:
    """From no program: a set-user-id bit means nothing from now on."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Nobody without privileges reads this process's memory, descriptors or environment."""
    prctl(_PR_SET_DUMPABLE, 0)


def be_killed_first() -> None:
    """When memory is short, the kernel kills this process, and what it starts, before all others, however small they are."""
    with contextlib.suppress(OSError):  # where there is no such file, it kills the largest
        Path("/proc/self/oom_score_adj").write_text("1000")


def adopt_orphans() -> None:
    """What descends from this process and loses its parent becomes its child."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the parent ends. A change of user takes this back."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> int:
    """0, or -1 where the kernel knows no such thing."""
    zero, number = ctypes.c_ulong(0), ctypes.c_ulong(value)
    return int(_libc.prctl(option, number, zero, zero, zero)) if sys.platform == "linux" else -1


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
