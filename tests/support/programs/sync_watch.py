"""Counts how often a process has the disk take what it wrote: traces its system calls, as strace does, from a thread. Linux only."""

import ctypes
import os
import platform
import signal
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import PATIENCE_SECONDS

_SEIZE, _INTERRUPT, _SYSCALL, _DETACH, _SYSCALL_INFO = 0x4206, 0x4207, 24, 17, 0x420E
_MARK_SYSCALLS = 1
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ALL_THREADS = 0x40000000
_ENTRY, _EXIT = 1, 2
_INFO = struct.Struct("=B3xIQQ7Q")  # what happens, architecture, two pointers; number and arguments, or the result
_NAMES = {
    "x86_64": {0: "read", 1: "write", 74: "sync", 75: "sync"},
    "aarch64": {63: "read", 64: "write", 82: "sync", 83: "sync"},
}

Event = tuple[str, bytes]
"""`read` or `write` with the bytes, or `sync`."""


class SyncWatch:
    """The system calls of a process's main thread, in their order. It must be a child of ours."""

    def __init__(self, pid: int) -> None:
        self.events: list[Event] = []
        self._pid = pid
        self._names = _NAMES[platform.machine()]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long
        self._entered: tuple[str, int] | None = None
        self._is_over = False
        self._is_tracing = threading.Event()

    def run(self) -> None:
        """Trace until `end`. The thread that begins it must be the one that goes on."""
        self._ask(_SEIZE, 0, _MARK_SYSCALLS)
        self._ask(_INTERRUPT)
        with Path(f"/proc/{self._pid}/mem").open("rb", buffering=0) as memory:
            while True:
                _, status = os.waitpid(self._pid, _ALL_THREADS)
                if not os.WIFSTOPPED(status):
                    return
                self._is_tracing.set()
                stopped_by = os.WSTOPSIG(status)
                if stopped_by == _SYSCALL_STOP:
                    self._note(memory.fileno())
                is_own = stopped_by == _SYSCALL_STOP or status >> 16  # else a signal that is to reach it
                if self._is_over:
                    self._ask(_DETACH)
                    return
                self._ask(_SYSCALL, 0, 0 if is_own else stopped_by)

    def begun(self, seconds: float) -> bool:
        """Wait until it traces."""
        return self._is_tracing.wait(seconds)

    def end(self) -> None:
        """Let the process go at its next system call."""
        self._is_over = True

    def _note(self, memory: int) -> None:
        info = ctypes.create_string_buffer(_INFO.size)
        self._ask(_SYSCALL_INFO, _INFO.size, ctypes.addressof(info))
        happens, _, _, _, *values = _INFO.unpack(info.raw)
        if happens == _ENTRY:
            name = self._names.get(values[0])
            self._entered = None if name is None else (name, values[2])
        elif happens == _EXIT and self._entered is not None:
            (name, address), size = self._entered, ctypes.c_int64(values[0]).value
            if size >= 0:
                self.events.append((name, os.pread(memory, size, address) if size else b""))

    def _ask(self, request: int, address: int = 0, data: int = 0) -> None:
        if self._libc.ptrace(request, self._pid, address, data) < 0:
            raise OSError(ctypes.get_errno(), f"the process cannot be traced ({request:#x})")


@contextmanager
def watch_syncs(pid: int) -> Generator[SyncWatch]:
    """Trace a child of ours meanwhile."""
    watch = SyncWatch(pid)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        assert watch.begun(10), "it is traced"
        yield watch
    finally:
        watch.end()
        thread.join(PATIENCE_SECONDS)
