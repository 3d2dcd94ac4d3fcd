"""`code_executor` in namespaces: what a program that means harm does not reach, and does not leave behind."""

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from modules.code_executor.isolation import isolation_for
from modules.code_executor.limits import Limits
from support.modules.example_modules import EXAMPLES, Module, running
from support.modules.workshop import executor
from support.processes import is_gone, python_program
from support.programs.escapes import outcomes
from support.programs.launchers import as_marked, marked
from support.waiting import wait_until, wait_until_sync

pytestmark = pytest.mark.skipif(
    isolation_for(Limits(isolation="best")) != "namespaces", reason="this kernel or container gives no user namespaces"
)

SLEEP = "print('ready', flush=True); import time; time.sleep(600)"


async def tell(module: Module, code: str) -> Any:
    """What the program prints, as JSON."""
    result = (await module("run_python", code=code))["result"]
    assert result["exit_code"] == 0, result
    return json.loads(result["stdout"])


async def test_a_program_sees_no_files_of_others(tmp_path: Path) -> None:
    """Not the module's store, not the project, no home, no service's socket; nor can it list where they are."""
    (tmp_path / "files").mkdir()
    secret = tmp_path / "files" / "diary"
    secret.write_text("secret")
    secret.chmod(0o666)
    paths = [str(secret), str(EXAMPLES.parent / "README.md"), "/etc/shadow", "/etc/hostname", "/proc/1/environ"]
    attempts = {path: f"open({path!r}).read()" for path in paths}
    folders = ("/run", "/sys", "/srv", "/var/log", "/var/lib", "/boot", str(tmp_path), str(EXAMPLES))
    attempts |= {folder: f"os.listdir({folder!r})" for folder in folders}
    told = await tell(executor(tmp_path), outcomes(attempts))
    assert set(told.values()) <= {"FileNotFoundError", "PermissionError"}, told
    told = await tell(executor(tmp_path), outcomes({"/tmp": "os.listdir('/tmp')", "/home": "len(os.listdir('/home'))"}))
    # The interpreter may lie there: the way to it is all that is to be seen.
    ways = {Path(path).parts[2] for path in (sys.prefix, sys.base_prefix, EXAMPLES) if Path(path).parts[1] == "tmp"}
    assert set(told["/tmp"]) <= ways
    assert told["/home"] == 1


async def test_programs_that_run_side_by_side_do_not_see_each_other(tmp_path: Path, mark: str) -> None:
    """As many run at once as `concurrency` says; each sees its own folder and its own processes, and no others."""
    module = executor(tmp_path, concurrency=2)
    held = asyncio.create_task(module("run_python", user_id="ada", code=as_marked(mark)))
    await wait_until(lambda: marked(mark), "the first program runs")
    attempts = {
        "folders": "len(os.listdir('/home'))",
        "processes": "sorted(int(name) for name in os.listdir('/proc') if name.isdigit())",
        "others": f"[p for p in os.listdir('/proc') if p.isdigit() and {mark!r} in open(f'/proc/{{p}}/cmdline').read()]",
    }
    told = await tell(module, outcomes(attempts).replace(f"{mark!r}", repr(mark[:8]) + " + " + repr(mark[8:])))
    assert (told["folders"], told["processes"], told["others"]) == (1, [1, 2], [])
    assert marked(mark)
    held.cancel()
    await asyncio.wait({held})


async def test_a_program_reads_no_process(tmp_path: Path) -> None:
    """Neither memory nor environment, descriptors or folder of any but its own, process 1 of its sandbox included."""
    code = """
import json, os
read = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "mem", "maps", "fd", "cwd", "root", "exe"):
        path = f"/proc/{pid}/{name}"
        try:
            os.listdir(path) if name == "fd" else os.readlink(path) if name in ("cwd", "root", "exe") else open(path, "rb").close()
        except OSError:
            continue
        read.setdefault(pid, []).append(name)
text = "".join(open(f"/proc/{pid}/environ").read() for pid in read)
print(json.dumps([sorted(read) == [str(os.getpid())], "hunter" in text]))
"""
    with python_program(SLEEP, env={"TOOLFLEET_SIGNING_KEY": "hunter2"}) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert await tell(executor(tmp_path), code) == [True, False]


async def test_a_program_reaches_no_service(tmp_path: Path) -> None:
    """Neither Redis nor any other that listens on loopback, nor a socket without a file; its own loopback works."""
    name = f"\0{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = server.getsockname()[1]
        attempts = {
            "loopback": f"socket.create_connection(('127.0.0.1', {port}), 5) and 1",
            "abstract": f"socket.socket(socket.AF_UNIX).connect({name!r})",
            "world": "socket.create_connection(('192.0.2.1', 80), 5) and 1",
            "interfaces": "[name for _, name in socket.if_nameindex() if not name.startswith('lo')]",
        }
        attempts["own"] = (
            "(s := socket.create_server(('127.0.0.1', 0)), socket.create_connection(s.getsockname(), 5)) and 1"
        )
        told = await tell(executor(tmp_path), outcomes(attempts))
        refused = {"loopback": "ConnectionRefusedError", "abstract": "ConnectionRefusedError", "world": "OSError"}
        assert {key: told[key] for key in refused} == refused
        assert told["own"] == 1
        assert (await tell(executor(tmp_path, network=True), outcomes(attempts)))["loopback"] == 1


async def test_a_program_signals_only_its_own(tmp_path: Path) -> None:
    """Not the machine's processes; process 1 of its sandbox pays no heed."""
    with python_program(SLEEP) as other:
        assert other.stdout is not None
        other.stdout.readline()
        attempts = {"other": f"os.kill({other.pid}, 15)", "first": "[os.kill(os.getppid(), n) for n in (2, 15, 9)]"}
        told = await tell(executor(tmp_path), outcomes(attempts))
        assert told == {"other": "ProcessLookupError", "first": [None, None, None]}
        assert other.poll() is None


async def test_a_program_has_no_privileges(tmp_path: Path) -> None:
    """And gets none: no capability, no new namespace, no mount, no set-user-id program, no tracing of process 1."""
    attempts = {
        "user": "[os.getuid(), os.getgroups()]",
        "caps": "{line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')}",
        "no_new_privs": "[line.split()[1] for line in open('/proc/self/status') if line.startswith('NoNewPrivs')]",
        "users": "libc.unshare(0x10000000) and ctypes.get_errno()",
        "mounts": "libc.unshare(0x20000) and ctypes.get_errno()",
        # All on its own folder: a sandbox that leaks must not take the machine along.
        "mount": "libc.mount(b'tmpfs', b'.', b'tmpfs', 0, None) and ctypes.get_errno()",
        "unmount": "libc.umount2(b'.', 2) and ctypes.get_errno()",
        "writable": "libc.mount(None, b'.', None, 0x1020, None) and ctypes.get_errno()",
        "trace": "libc.ptrace(16, os.getppid(), 0, 0) and ctypes.get_errno()",
        "chroot": "libc.chroot(b'.') and ctypes.get_errno()",
    }
    told = await tell(executor(tmp_path), outcomes(attempts))
    assert told.pop("user") == [1000, []]
    assert told.pop("caps") == "{'0000000000000000'}"
    assert told.pop("no_new_privs") == ["1"]
    assert told.pop("users") == 28  # none are left: ENOSPC
    assert set(told.values()) == {1}, told  # EPERM


async def test_a_program_writes_nowhere_but_in_its_own(tmp_path: Path) -> None:
    """Neither in the system nor in the interpreter that the next program starts with."""
    places = ["/", "/usr", "/etc/passwd", "/home", "..", "../program.py", "/dev", "/var", "/proc/self/oom_score_adj"]
    places += [f"{sys.prefix}/bin", os.__file__, str(Path(os.__file__).parent), "/proc/sys/kernel/core_pattern"]
    told = await tell(executor(tmp_path), outcomes({place: f"os.access({place!r}, os.W_OK)" for place in places}))
    assert set(told.values()) == {False}, told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a user id away")
async def test_roots_program_belongs_to_a_user_of_its_own(tmp_path: Path, mark: str) -> None:
    """Seen from outside it is nobody that the machine knows, and no two programs are the same."""
    module = executor(tmp_path, concurrency=2)
    calls = [asyncio.create_task(module("run_python", code=as_marked(mark))) for _ in range(2)]
    await wait_until(lambda: len(marked(mark)) == len(calls), "both run")
    users = {Path(f"/proc/{pid}").stat().st_uid for pid in marked(mark)}
    assert len(users) == len(calls)
    assert min(users) > 2**16 - 1
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_what_a_program_leaves_in_shared_folders_is_gone(tmp_path: Path, mark: str) -> None:
    """It may write there, and nobody else ever sees it."""
    places = [f"{folder}/{mark}" for folder in ("/tmp", "/var/tmp", "/dev/shm")]
    told = await tell(executor(tmp_path), outcomes({place: f"open({place!r}, 'w').write('x')" for place in places}))
    assert set(told.values()) == {1}
    left = [place for place in places if Path(place).exists()]
    for place in left:
        Path(place).unlink()
    assert left == []
    told = await tell(executor(tmp_path), outcomes({place: f"os.path.exists({place!r})" for place in places}))
    assert set(told.values()) == {False}


async def test_another_users_program_finds_nothing_of_a_tmp_in_use(tmp_path: Path, mark: str) -> None:
    """It cannot read, list, guess or connect to what is there, while the first one runs."""
    module = executor(tmp_path, concurrency=2)
    code = f"""
import os, socket, sys
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    open(f"{{folder}}/known", "w").write("secret")
    os.chmod(f"{{folder}}/known", 0o666)
socket.socket(socket.AF_UNIX).bind("/tmp/socket")
os.mkfifo("/tmp/pipe", 0o666)
{as_marked(mark)}
"""
    held = asyncio.create_task(module("run_python", user_id="ada", code=code))
    await wait_until(lambda: marked(mark), "the first program runs")
    attempts = {
        f"{attempt} {folder}": f"{attempt}({folder + '/known'!r})"
        for folder in ("/tmp", "/var/tmp", "/dev/shm")
        for attempt in ("open", "os.stat", "os.remove")
    }
    attempts |= {folder: f"os.listdir({folder!r})" for folder in ("/var/tmp", "/dev/shm")}
    attempts["socket"] = "socket.socket(socket.AF_UNIX).connect('/tmp/socket')"
    attempts["pipe"] = "os.open('/tmp/pipe', os.O_WRONLY | os.O_NONBLOCK)"
    told = await tell(module, outcomes(attempts))
    assert told.pop("/var/tmp") == told.pop("/dev/shm") == []
    assert set(told.values()) == {"FileNotFoundError"}, told
    assert marked(mark)
    held.cancel()
    await asyncio.wait({held})


async def test_a_program_cannot_fill_the_disk(tmp_path: Path) -> None:
    """All its files together have a limit, in bytes and in number, wherever they lie."""
    code = """
import json, os
written = 0
try:
    for n in range(100):
        with open(f"{('.', '/tmp', '/dev/shm')[n % 3]}/f{n}", "wb", buffering=0) as file:
            written += file.write(bytes(2**20))
except OSError as exc:
    full = exc.errno
for n in range(100):
    try: os.remove(f"{('.', '/tmp', '/dev/shm')[n % 3]}/f{n}")
    except OSError: break
try:
    for n in range(50_000): os.mkdir(f"d{n}")
except OSError as exc:
    print(json.dumps([written <= 8 * 2**20, full, exc.errno, n <= 20_000]))
"""
    assert await tell(executor(tmp_path, disk_mb=8), code) == [True, 28, 28, True]


async def test_threads_of_a_program_have_a_limit(tmp_path: Path) -> None:
    """The kernel's own, so that no bomb is faster."""
    code = """
import json, threading
threading.stack_size(65536)
stop, started = threading.Event(), 0
try:
    while started < 400:
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
except RuntimeError:
    pass
stop.set()
print(json.dumps(started))
"""
    assert await tell(executor(tmp_path, processes=5), code) < 140


async def test_too_many_processes_are_all_ended(tmp_path: Path, mark: str) -> None:
    """With all that they have started, sessions of their own included."""
    child = "import os, time\nfor _ in range(30): os.fork() or (os.setsid(), time.sleep(600))\ntime.sleep(600)"
    reply = await executor(tmp_path, processes=5)("run_python", code=as_marked(mark, child))
    assert reply["error"].startswith("The program was ended: it had more than 5 processes at once.")
    assert marked(mark) == []


async def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path, mark: str) -> None:
    """Also what has left its session and its parent."""
    code = f"""
import os, subprocess, sys
child = "import os, sys; os.fork() and os._exit(0); os.setsid(); import time; open('on', 'w'); time.sleep(600)"
subprocess.run([sys.executable, "-c", child, {mark!r}])
while not os.path.exists("on"): pass
"""
    assert (await executor(tmp_path)("run_python", code=code))["result"]["exit_code"] == 0
    assert marked(mark) == []


async def test_a_cancelled_call_ends_its_program(tmp_path: Path, mark: str) -> None:
    """Before the call returns."""
    call = asyncio.create_task(executor(tmp_path)("run_python", code=as_marked(mark)))
    await wait_until(lambda: marked(mark), "the program runs")
    call.cancel()
    await asyncio.wait({call})
    assert marked(mark) == []


async def test_a_killed_module_leaves_nothing(tmp_path: Path, mark: str) -> None:
    """Neither the program nor its sandbox, which the kernel ends with the launcher."""
    with running("code_executor", tmp_path) as module:
        call = asyncio.create_task(module.post("run_python", code=as_marked(mark)))
        await wait_until(lambda: marked(mark), "the program runs")
        assert module.process is not None
        module.process.kill()
        await asyncio.wait({call})
        assert call.exception() is not None
    await wait_until(lambda: not marked(mark), "the program has ended")


@pytest.mark.parametrize("level", [0, 1, 2, 3], ids=["launcher", "outer", "process 1", "program"])
async def test_a_sandbox_of_which_a_part_is_killed_ends(tmp_path: Path, mark: str, level: int) -> None:
    """Whichever: nothing goes on, and the call has an end."""
    call = asyncio.create_task(executor(tmp_path)("run_python", code=as_marked(mark)))
    await wait_until(lambda: marked(mark), "the program runs")
    chain = marked(mark)
    for _ in range(3):
        status = Path(f"/proc/{chain[0]}/status").read_text()
        chain.insert(0, int(status.split("PPid:")[1].split()[0]))
    os.kill(chain[level], signal.SIGKILL)
    await call
    wait_until_sync(lambda: all(map(is_gone, chain)), "all have ended")
