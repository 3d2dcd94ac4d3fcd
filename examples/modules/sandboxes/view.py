"""Builds what a program in a sandbox sees of the machine: what is listed here, and what its starter shows it.

The system's programs and libraries and the interpreter are read-only; beside them are a few devices, a /proc with its own
processes, and /tmp, /var/tmp and /dev/shm in a file system in memory that ends with the sandbox.
"""

import contextlib
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from modules.sandboxes import linux

USER = 1000  # what the program takes itself for; outside it is another, without rights
FILES = 20_000  # inodes of the file system in memory: a million of empty files takes a gigabyte of the kernel's
_SEEN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_NETWORK_SETTINGS = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_WRITABLE = ("tmp", "var/tmp", "dev/shm")
_PASSWD = f"program:x:{USER}:{USER}::/:/bin/sh\n"


class View(NamedTuple):  # a dataclass takes longer to import than a sandbox to start
    """What is shown. `folder` is made in memory, and filled by `fill` as the program's user; `/work` in it may be written to.

    `readable` and `writable` are the machine's own files and folders, shown at the same places; a link is not written to.
    """

    disk_mb: int
    network: bool
    folder: str | None = None
    fill: Callable[[Path], None] | None = None
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def build_view(view: View) -> list[int]:
    """Make all that the program sees, and it alone, the root. Returns its working folder in memory, if it has one, and /tmp, open.

    Raises `OSError`.
    """
    trees = _opened(view)  # while we may still look there
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    linux.keep_mounts_private()
    linux.mount("tmpfs", "/tmp", f"size={view.disk_mb}m,nr_inodes={FILES},mode=755", flags=linux.NO_SETUID)  # noqa: S108
    os.chdir("/tmp")  # noqa: S108
    _make_folders_in_memory(view)
    for path, descriptor in trees.items():
        _show(path, descriptor, writable=path in view.writable)
    _make_devices_and_settings()
    linux.restrict(".", linux.READ_ONLY, recursive=False)
    with contextlib.suppress(OSError):  # where a container hides parts of /proc, the program has none
        linux.mount("proc", "proc")
        with contextlib.suppress(OSError):
            Path("proc/sys/user/max_user_namespaces").write_text("0")
        linux.restrict("proc", linux.READ_ONLY)
    linux.make_root_of_this_folder()
    if not view.network:
        _raise_loopback()
    kept = () if view.folder is None else (f"{view.folder}/work", "/tmp")  # noqa: S108 - it is the program's own
    return [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in kept]


def system_files(*, network: bool) -> Iterator[str]:
    """What every program may read of the machine: its programs, libraries and settings, the devices, and the interpreter."""
    yield from (path for path in (*_SEEN, *_SETTINGS) if Path(path).exists())
    if network:
        yield from (path for path in _NETWORK_SETTINGS if Path(path).exists())
    yield from (f"/dev/{name}" for name in _DEVICES)
    for prefix in _interpreter():
        if not prefix.is_relative_to("/usr"):
            parts = (prefix / part for part in ("bin", "lib", "lib64", "pyvenv.cfg"))
            yield from (str(path) for path in parts if path.exists())


def _opened(view: View) -> dict[str, int]:
    """What of the machine is seen, opened, each before what lies in it. What lies in what is read anyway needs no words."""
    trees = {path: os.open(path, os.O_PATH) for path in system_files(network=view.network)}
    for path in sorted(view.readable):
        if not any(Path(path).is_relative_to(tree) for tree in trees):
            trees[path] = os.open(path, os.O_PATH)
    return trees | {path: os.open(path, os.O_PATH | os.O_NOFOLLOW) for path in sorted(view.writable)}


def _make_folders_in_memory(view: View) -> None:
    folder = None if view.folder is None else view.folder.lstrip("/")
    if folder is not None and view.fill is not None:
        Path(folder).mkdir(parents=True)
        view.fill(Path(folder))
    for name in (*_WRITABLE, *([f"{folder}/work"] if folder else ())):
        Path(name).mkdir(parents=True, exist_ok=True)
        linux.bind(name, name)
    for name in _WRITABLE:
        Path(name).chmod(0o1777)


def _interpreter() -> list[Path]:
    """Where Python and what is installed for it lie: a virtual environment, and what it was made from."""
    prefixes = [Path(sys.executable).parent.parent, Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    return [prefix for prefix in dict.fromkeys(prefixes) if prefix != Path("/")]


def _show(path: str, descriptor: int, *, writable: bool) -> None:
    target = Path(path.lstrip("/"))
    if path in _SEEN and Path(path).is_symlink():
        target.symlink_to(Path(path).readlink())
        return
    if Path(f"/proc/self/fd/{descriptor}").is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    linux.bind(f"/proc/self/fd/{descriptor}", str(target))
    linux.restrict(str(target), linux.NO_SETUID if writable else linux.READ_ONLY | linux.NO_SETUID)


def _make_devices_and_settings() -> None:
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        Path(f"dev/{name}").symlink_to(f"/proc/self/fd{target}")
    Path("etc").mkdir(exist_ok=True)
    Path("etc/passwd").write_text(_PASSWD)
    Path("proc").mkdir()


def _raise_loopback() -> None:
    """Its own: it leads to its own processes only."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
