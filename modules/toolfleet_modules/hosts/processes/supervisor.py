"""Starts a program behind its fence, and ends it with all its children when it ends or its host does: this runs as a process between both.

It imports little, and runs without `site`: both would cost a server that is restarted repeatedly more than its own
start.
"""

import ctypes
import os
import signal
import sys
import time

from toolfleet_modules.hosts.processes.enclosure import enclose

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 5.0  # for processes that have been killed to be gone
_PAUSE_SECONDS = 0.005
_NOT_STARTED = 127  # as a shell says it
_ROOT = os.path.abspath(f"{__file__}/../../../..")  # noqa: PTH100 - `pathlib` is a part of what a start costs
# Not by `-m`: that needs `site`, whose start takes as long as all else here.
_MAIN = f"import sys; sys.path.append({_ROOT!r}); from {__name__} import main; sys.exit(main(sys.argv[1:]))"


def supervise(host: int, limits: dict[str, int | None], paths: list[str], command: list[str]) -> int:
    """Run the command with this process's standard streams; returns its exit code, 128 more than a signal's number."""
    signal.signal(signal.SIGTERM, _end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the host
    _adopt_orphans()
    if os.getppid() != host:  # it ended before we could ask to be told
        return _NOT_STARTED
    own = os.getpid()
    program = os.fork()
    if not program:
        _become(own, limits, paths, command)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # so that their reader sees the program's end
        os.dup2(nothing, stream)
    code = _exit_code_of(program)
    _end_all()
    return code


def command_of(host: int, limits: dict[str, int | None], paths: list[str], command: list[str]) -> list[str]:
    """Give the command that runs `main` with these."""
    said = ",".join(f"{name}={value}" for name, value in {**limits, "paths": len(paths)}.items() if value is not None)
    return [sys.executable, "-I", "-S", "-c", _MAIN, str(host), said, *paths, *command]


def main(arguments: list[str]) -> int:
    """Take the host's process id, the limits (`nice=10,open_files=99,paths=1`), the paths, and the command."""
    host, said, *rest = arguments
    limits: dict[str, int | None] = {}
    for each in filter(None, said.split(",")):
        name, _, value = each.partition("=")
        limits[name] = int(value)
    count = limits.pop("paths", 0) or 0
    return supervise(int(host), limits, rest[:count], rest[count:])


def _become(parent: int, limits: dict[str, int | None], paths: list[str], command: list[str]) -> None:
    """Become the program, in a session of its own. Does not return."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        enclose(limits, paths)
        if os.getppid() == parent:  # it did not end before we asked to end with it
            os.execvp(command[0], command)  # noqa: S606 - what it is for
    except OSError as exc:
        sys.stderr.write(f"{command[0]}: {exc.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(_NOT_STARTED)


def _adopt_orphans() -> None:
    """Become the parent of the program's orphaned children, and be told when the host ends."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _exit_code_of(program: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)  # of others, too: they were adopted
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_now(number: int, _: object) -> None:
    _end_all()
    os._exit(128 + number)


def _end_all() -> None:
    """Kill every descendant, also those in sessions of their own, until none is left."""
    give_up_at = time.monotonic() + _END_SECONDS
    while time.monotonic() < give_up_at:
        for process in _descendants():
            _kill(process)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_SECONDS)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return  # it has ended meanwhile


def _descendants() -> list[int]:
    """Return the descendants of this process; none without `/proc`."""
    children: dict[int, list[int]] = {}
    for name in _processes():
        try:
            with open(f"/proc/{name}/stat", errors="replace") as file:  # noqa: PTH123 - `pathlib` is a part of what a start costs
                fields = file.read().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    found: list[int] = []
    following = [os.getpid()]
    while following:
        following = [child for parent in following for child in children.get(parent, [])]
        found += following
    return found


def _processes() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - as above
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
