"""Watches over processes from a process of its own, and ends them with all that they have started when their parent is gone.

`run` stands between a host and one program: it starts the program behind its fence, and ends the program's descendants
when the program ends or the host does. `reap` stands next to a parent of many, and ends the process groups that the
parent named and left behind. Both import little, and run without `site`: that would cost a server that is restarted
repeatedly more than its own start.
"""

import os
import signal
import sys
import time

from toolfleet_modules.hosts.enclosure import adopt_orphans, enclose, end_with_parent

_END_SECONDS = 5.0  # for processes that have been killed to be gone
_PAUSE_SECONDS = 0.005
_REAP_PAUSE_SECONDS = 0.05
_NOT_STARTED = 127  # as a shell says it
_ROOT = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100 - `pathlib` is a part of what a start costs
# Not by `-m`: that needs `site`, whose start takes as long as all else here.
_MAIN = f"import sys; sys.path.append({_ROOT!r}); from {__name__} import main; sys.exit(main(sys.argv[1:]))"


def run_command(host: int, limits: dict[str, int | None], paths: list[str], command: list[str]) -> list[str]:
    """Return the command that runs another one behind these limits, as long as the host lives."""
    said = ",".join(f"{name}={value}" for name, value in {**limits, "paths": len(paths)}.items() if value is not None)
    return [sys.executable, "-I", "-S", "-c", _MAIN, "run", str(host), said, *paths, *command]


def reap_command(patience_seconds: float) -> list[str]:
    """Return the command that reads `+GROUP` and `-GROUP`, one a line, and ends the groups that are left at its input's end."""
    return [sys.executable, "-I", "-S", "-c", _MAIN, "reap", str(patience_seconds)]


def signal_group(group: int, signum: int) -> bool:
    """Send a signal to a child in a session of its own, and to its children. Returns whether there were any."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group that has only zombies left
        return False
    return True


def main(arguments: list[str]) -> int:
    """Take `reap` and its patience, or `run`, the host's process id, the limits (`nice=10,paths=1`), the paths, and the command."""
    kind, first, *rest = arguments
    if kind == "reap":
        _reap(float(first))
        return 0
    said, *words = rest
    limits: dict[str, int | None] = {}
    for each in filter(None, said.split(",")):
        name, _, value = each.partition("=")
        limits[name] = int(value)
    count = limits.pop("paths", 0) or 0
    return _run(int(first), limits, words[:count], words[count:])


def _reap(patience_seconds: float) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole fleet must end this process last
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    left = {group for group in groups if signal_group(group, signal.SIGTERM)}
    give_up_at = time.monotonic() + patience_seconds
    while left and time.monotonic() < give_up_at:
        time.sleep(_REAP_PAUSE_SECONDS)
        left = {group for group in left if signal_group(group, 0)}
    for group in left:
        signal_group(group, signal.SIGKILL)


def _run(host: int, limits: dict[str, int | None], paths: list[str], command: list[str]) -> int:
    """Run the command with this process's standard streams; returns its exit code, 128 more than a signal's number."""
    signal.signal(signal.SIGTERM, _end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the host
    adopt_orphans()
    end_with_parent(signal.SIGTERM)
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
