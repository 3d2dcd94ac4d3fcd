"""Limits processes that run what others have written, watches over them, and ends them when their host is gone.

`enclose` limits the process that it runs in: its resources, its priority, its user and the files that this user sees.

A guard is a process of its own. `run` stands between a host and one program: it starts the program enclosed, and ends
the program's descendants when the program ends or the host does. `reap` stands next to a parent of many, and ends the
process groups that the parent has named and left behind. Each program of an MCP server is started by a guard, so this
file imports little, and a guard runs without `site`.
"""

# `pathlib` would be a large part of what a start costs.
# ruff: noqa: PTH100, PTH103, PTH109, PTH110, PTH114, PTH116, PTH120, PTH123, PTH208
import ctypes
import os
import resource
import signal
import stat
import struct
import sys
import time

LIMITED = {
    "memory_bytes": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}
"""The limits of a process, by their names in a fence."""

OWN, WORK, READ, HIDE = "o", "w", "r", "-"
"""A user's access to a path: as its new owner, as the owner is (idmapped), read only, or none."""

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_NEW_USERS, _NEW_MOUNTS = 0x10000000, 0x00020000  # unshare(2)
_BIND_ALL, _PRIVATE = 0x5000, 0x44000  # mount(2), with all below
_NO_SETUID, _NO_DEVICES = 2, 4
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
_CLONE_CLOSED, _EMPTY_PATH, _IDMAP, _FROM_EMPTY_PATH, _HERE = 0x80001, 0x1000, 0x100000, 4, -100
_USERS = 2**32 - 1
_MODE = 0o755
_USERS_SECONDS = 10  # for the process that holds a namespace, if nothing ends it

_libc = ctypes.CDLL(None, use_errno=True)

_END_SECONDS = 5.0  # for processes that have been killed to be gone
_PAUSE_SECONDS = 0.005
_REAP_PAUSE_SECONDS = 0.05
_NOT_STARTED = 127  # as a shell says it
_ROOT = os.path.abspath(f"{__file__}/../../..")
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
        _exec(own, limits, paths, command)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # so that their reader sees the program's end
        os.dup2(nothing, stream)
    code = _exit_code_of(program)
    _end_all()
    return code


def _exec(parent: int, limits: dict[str, int | None], paths: list[str], command: list[str]) -> None:
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
            with open(f"/proc/{name}/stat", errors="replace") as file:
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
        return [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def enclose(limits: dict[str, int | None], paths: list[str] | None = None) -> None:
    """Set this process's user, limits and priority, take the way to more privileges from it, and have it end when its host does.

    `paths` are those of the user, if there is one. Raises `OSError` where the process cannot become that user.
    """
    if (user := limits.get("user")) is not None:
        _become_user(user, paths or [])  # first: a change of the user takes back that a process ends with its parent
    for name, kind in LIMITED.items():
        if (most := limits.get(name)) is not None:
            hard = resource.getrlimit(kind)[1]
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stand_back(0, limits.get("nice") or 0)
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    end_with_parent(signal.SIGKILL)


def end_with_parent(signum: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends; only Linux does.

    If that has ended before, no signal comes: compare `os.getppid()` afterwards.
    """
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of orphaned processes below this one; only on Linux."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stand_back(process: int, nice: int) -> None:
    """Lower a process's priority to `nice`; 0 is this one. Never raises it again, which only root may. Raises `OSError` if it has ended."""
    if nice > os.getpriority(os.PRIO_PROCESS, process):
        os.setpriority(os.PRIO_PROCESS, process, nice)


def _become_user(user: int, paths: list[str]) -> None:
    """Run as this user, and its group, from now on. Each path begins with what it is to the user. Raises `OSError`: it cannot be.

    A program's folders are the operator's, often closed to others. So the process gets its own view of the files: its
    working folder shows its owner as this user (an idmapped mount, Linux 5.12), and a closed folder on the way shows only
    the needed files.
    """
    known = [
        (path, each[0]) for each in paths for path in {each[1:], os.path.realpath(each[1:])} if os.path.exists(path)
    ]
    here = os.getcwd()
    _call("unshare", _NEW_MOUNTS)
    _mount(None, "/", _PRIVATE)
    # Descriptors, as a path may be covered when its turn comes. What is above comes first.
    held = [
        (path, kind, _own_tree(path, user) if kind == WORK else os.open(path, os.O_PATH))
        for path, kind in sorted(known)
    ]
    mask = os.umask(0o777 & ~_MODE)
    for path, kind, descriptor in held:
        if kind == OWN:
            os.chown(f"/proc/self/fd/{descriptor}", user, user)  # the path itself may be covered by now
        _show(path, kind, descriptor, user)
        os.close(descriptor)
    os.umask(mask)
    os.chdir(here)  # it was below what is covered now
    for stream in range(3):
        if stat.S_ISFIFO(os.fstat(stream).st_mode):  # `/dev/stderr` is opened by its owner only
            os.fchown(stream, user, user)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else its own `/proc/self` is root's


def _show(path: str, kind: str, descriptor: int, user: int) -> None:
    closed = _closed_above(path, user)
    is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    if kind == HIDE:
        if not closed and os.path.exists(path):
            _mount("tmpfs" if is_folder else "/dev/null", path, _BIND_ALL, 0o700)
        return
    if closed:
        _mount("tmpfs", closed, 0, _MODE)
    if not (is_there := os.path.exists(path)):
        os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
        if not is_folder:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    if kind == WORK and not os.path.islink(path):
        _system_call(_MOVE_MOUNT, descriptor, b"", _HERE, os.fsencode(path), _FROM_EMPTY_PATH)
    elif not is_there:
        _mount(f"/proc/self/fd/{descriptor}", path, _BIND_ALL)


def _own_tree(path: str, user: int) -> int:
    """Return a tree whose owner is this user, only in this view."""
    facts = os.stat(path)
    tree = _system_call(_OPEN_TREE, _HERE, os.fsencode(path), _CLONE_CLOSED)
    users = _users(facts.st_uid, facts.st_gid, user)
    attributes = struct.pack("QQQQ", _IDMAP | _NO_SETUID | _NO_DEVICES, 0, 0, users)
    _system_call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, attributes, len(attributes))
    os.close(users)
    return tree


def _users(owner: int, group: int, user: int) -> int:
    """Return a namespace in which the owner is this user, and all others are themselves; the kernel knows it by a process in it."""
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_USERS_SECONDS)
        os.write(done, b"+" if _libc.unshare(_NEW_USERS) == 0 else b"-")
        signal.pause()
    try:
        if os.read(ready, 1) != b"+":
            raise OSError("no user namespaces")
        for name, one in (("uid_map", owner), ("gid_map", group)):
            low, high = sorted((one, user))
            themselves = [(at, at, end - at) for at, end in ((0, low), (low + 1, high), (high + 1, _USERS)) if end > at]
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write("".join(f"{at} {to} {size}\n" for at, to, size in [(one, user, 1), *themselves]))
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(done)


def _closed_above(path: str, user: int) -> str | None:
    """Return the outermost folder above a path that the user cannot pass."""
    for end in (at for at, letter in enumerate(path) if letter == "/" and at):
        try:
            facts = os.stat(path[:end])
        except FileNotFoundError:
            return None
        if not facts.st_mode & (stat.S_IXUSR if facts.st_uid == user else stat.S_IXOTH):
            return path[:end]
    return None


def _mount(source: str | None, target: str, flags: int, mode: int = 0) -> None:
    kind = source if source == "tmpfs" else None
    flags = _NO_SETUID | _NO_DEVICES if kind else flags
    words = (each and os.fsencode(each) for each in (source, target, kind))
    _call("mount", *words, ctypes.c_ulong(flags), f"mode={mode:o}".encode() if kind else None)


def _system_call(number: int, *words: int | bytes) -> int:
    return _call("syscall", *(ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *words)))


def _call(name: str, *words: object) -> int:
    answer = int(getattr(_libc, name)(*words))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer
