"""`code_executor` without its sandbox: what a program leaves in /tmp, /var/tmp and /dev/shm, and who gets at it."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from modules.code_executor.isolation import ALONE, Isolation, isolation_for
from modules.code_executor.leftovers import SHARED
from modules.code_executor.limits import Limits
from support.modules.workshop import executor
from support.processes import is_gone, python_program
from support.programs.escapes import outcomes
from support.programs.launchers import SYSTEMS_PYTHON, WITHOUT_LANDLOCK, as_marked, launched, marked, ran
from support.waiting import wait_until, wait_until_sync

takes_root = pytest.mark.skipif(
    os.geteuid() != 0 or not SYSTEMS_PYTHON, reason="takes root, and a Python that all users may run"
)


def has_landlock() -> bool:
    try:
        return isolation_for(Limits(isolation="landlock")) == "landlock"
    except RuntimeError:
        return False


takes_landlock = pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where programs' folders are made, and none is left; every user finds the way there. No other module ends what runs in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="scratch-") as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # it remembers the first answer
        yield scratch
        assert list(scratch.iterdir()) == []


def left(mark: str) -> list[str]:
    """What the machine sees of it in its shared folders. It is removed."""
    found = [path for folder in SHARED for path in Path(folder).glob(f"{mark}*")]
    for path in found:
        path.unlink()
    return [str(path) for path in found]


@takes_root
@pytest.mark.parametrize("isolation", ["user with mounts", pytest.param("user with landlock", marks=takes_landlock)])
def test_users_at_the_same_time_find_nothing_of_each_other(isolation: Isolation, mark: str) -> None:
    """What one left open for all in shared folders, and has in its own, the other cannot read, list or guess."""
    code = f"""
import contextlib, os
os.umask(0)
for folder in {SHARED}:
    with contextlib.suppress(OSError): open(f"{{folder}}/{mark}", "w").write("secret")
open("output/known", "w").write("secret")
os.chmod("..", 0o777)
{as_marked(mark)}
"""
    with launched(isolation, code):
        wait_until_sync(lambda: marked(mark), "the first program runs")
        (pid,) = marked(mark)
        folder = str(Path(f"/proc/{pid}/cwd").readlink())
        attempts = {f"open {place}": f"open('{place}/{mark}').read()" for place in SHARED}
        attempts |= {f"list {place}": f"{mark!r} in os.listdir({place!r})" for place in SHARED}
        attempts |= {f"guess {place}": f"os.stat('{place}/{mark}')" for place in SHARED}
        attempts |= {"cwd": f"os.listdir('/proc/{pid}/cwd')", "folder": f"os.listdir({folder!r})"}
        attempts |= {"file": f"open('{folder}/output/known').read()", "kill": f"os.kill({pid}, 9)"}
        told = json.loads(ran(isolation, outcomes(attempts))["stdout"])
        assert set(told.values()) <= {False, "FileNotFoundError", "PermissionError", "ProcessLookupError"}, told
        assert not is_gone(pid)
        assert left(mark) == []
    wait_until_sync(lambda: is_gone(pid), "the first program has ended")
    assert left(mark) == []


@takes_root
def test_root_gives_a_program_shared_folders_of_its_own(mark: str) -> None:
    """What it saves directly in /tmp is collected; all its files have one limit together; all end with it."""
    code = f"""
import os
for folder in {SHARED}: open(f"{{folder}}/{mark}", "w").write("x")
os.mkfifo("/tmp/pipe")
print(os.getuid(), os.getgroups(), os.listdir("/var/tmp"))
written = 0
try:
    for n in range(100):
        with open(f"{{('.', *{SHARED})[n % 4]}}/f{{n}}", "wb", buffering=0) as file: written += file.write(bytes(2**20))
except OSError as exc:
    print(exc.errno, written <= 8 * 2**20)
"""
    answer = ran("user with mounts", code, disk_mb=8)
    first, second = answer["stdout"].splitlines()
    assert int(first.split()[0]) > 2**16 - 1
    assert (first.split(maxsplit=1)[1], second) == (f"[] ['{mark}']", "28 True")
    assert list(answer["files"]) == [mark]
    assert ["/tmp/pipe", "it is no file: links, folders and the like are not saved"] in answer["left_out"]
    assert left(mark) == []


@takes_landlock
def test_the_kernel_refuses_what_is_not_the_programs(tmp_path: Path, mark: str) -> None:
    """Also to a program of the module's own user: shared folders, others' files, devices, signals; its own folder works."""
    secret = tmp_path / "diary"
    secret.write_text("secret")
    secret.chmod(0o666)
    attempts = {f"write {place}": f"open('{place}/{mark}', 'w')" for place in SHARED}
    attempts |= {f"list {place}": f"os.listdir({place!r})" for place in (*SHARED, "/", str(tmp_path))}
    attempts |= {
        "link": f"os.symlink('/etc', '/tmp/{mark}')",
        "pipe": f"os.mkfifo('/tmp/{mark}')",
        "socket": f"socket.socket(socket.AF_UNIX).bind('/tmp/{mark}')",
        "device": "os.mknod('device', 0o600 | 0o020000, os.makedev(1, 5))",
        "read": f"open({str(secret)!r}).read()",
        "spoil": f"open({str(secret)!r}, 'w')",
        "shadow": "open('/etc/shadow').read()",
        "program": "open('../program.py', 'a')",
    }
    told = json.loads(ran("landlock", outcomes(attempts))["stdout"])
    assert set(told.values()) == {"PermissionError"}, told
    assert left(mark) == []
    works = (
        "open('output/a', 'w').write('x'); open('/dev/null', 'w').write('x'); import subprocess; subprocess.run('true')"
    )
    answer = ran("landlock", works)
    assert (answer["exit_code"], list(answer["files"])) == (0, ["a"]), answer
    with python_program("import time; time.sleep(600)", env={"SECRET": "x"}) as other:
        answer = ran("landlock", outcomes({"environment": f"open('/proc/{other.pid}/environ').read()"}))
        assert json.loads(answer["stdout"]) == {"environment": "PermissionError"}


@takes_root
@pytest.mark.parametrize("ending", ["by itself", "at its limit", "with its launcher"])
def test_where_nothing_can_be_refused_what_a_user_left_is_removed(mark: str, scratch: Path, ending: str) -> None:
    """Links, pipes, sockets, closed folders, in folders that are open for all too, and what runs on in the background."""
    place = [*WITHOUT_LANDLOCK, "--mounts"]
    child = "import os, time; os.setsid(); time.sleep(600)"
    code = f"""
import os, socket, subprocess, sys
for folder in {SHARED}: open(f"{{folder}}/{mark}", "w")
os.symlink("/etc", "/tmp/{mark}-link")
os.mkfifo("/tmp/{mark}-pipe")
socket.socket(socket.AF_UNIX).bind("/tmp/{mark}-socket")
os.makedirs("/tmp/{mark}-folder/closed"); os.chmod("/tmp/{mark}-folder/closed", 0)
subprocess.Popen([sys.executable, "-c", {child!r}, {mark!r}])
{"" if ending == "by itself" else "import time; time.sleep(600)"}
"""
    with launched("user", code, place=place, alone=True, wall_seconds=2 if ending == "at its limit" else 60) as program:
        if ending == "with its launcher":
            wait_until_sync(lambda: marked(mark), "the program runs")
            program.process.kill()
        else:
            assert program.answer()["broken_limit"] == ("wall_time" if ending == "at its limit" else None)
            assert (left(mark), marked(mark)) == ([], [])
    attempts = {"shared": f"[n for folder in {SHARED} for n in os.listdir(folder) if {mark!r} in n]"}
    told = json.loads(ran("user", outcomes(attempts), place=place, alone=True)["stdout"])
    assert told == {"shared": []}
    assert (left(mark), marked(mark)) == ([], [])


@pytest.mark.parametrize(
    "isolation",
    [
        "none",
        pytest.param("landlock", marks=takes_landlock),
        pytest.param("user with landlock", marks=[takes_root, takes_landlock]),
    ],
)
def test_what_a_killed_launcher_left_is_gone_before_the_next_program(
    isolation: Isolation, mark: str, scratch: Path
) -> None:
    """Its folder, whatever the program did to it, and what runs on in the background."""
    child = "import os, time; os.setsid(); time.sleep(600)"
    code = f"""
import os, subprocess, sys, time
open("output/diary", "w").write("secret")
os.makedirs("closed/deeper"); os.chmod("closed", 0)
subprocess.Popen([sys.executable, "-c", {child!r}, {mark!r}])
time.sleep(600)
"""
    with launched(isolation, code, alone=isolation in ALONE) as program:
        wait_until_sync(lambda: marked(mark), "the program runs")
        program.process.kill()
    assert list(scratch.iterdir())
    assert ran(isolation, "print(7)", alone=isolation in ALONE)["stdout"] == "7\n"
    assert marked(mark) == []


@takes_landlock
async def test_programs_run_one_after_the_other_also_of_two_modules(tmp_path: Path, scratch: Path) -> None:
    """Where they have no users of their own, two processes of the module take turns on the machine."""
    modules = [executor(tmp_path, isolation="landlock", concurrency=2, queue_seconds=60) for _ in range(2)]
    code = "import time; print(time.monotonic()); time.sleep(0.2); print(time.monotonic())"
    calls = [module("run_python", user_id=user, code=code) for module in modules for user in ("ada", "bob")]
    replies = await asyncio.gather(*calls)
    spans = sorted([float(word) for word in reply["result"]["stdout"].split()] for reply in replies)
    assert all(first[1] < second[0] for first, second in pairwise(spans)), spans
    assert list(scratch.iterdir()) == []


async def test_a_program_whose_turn_does_not_come_is_sent_away(tmp_path: Path, scratch: Path, mark: str) -> None:
    """While another module's runs, with the advice when to come back; then it runs."""
    patient, hurried = (executor(tmp_path, isolation="none", queue_seconds=seconds) for seconds in (30, 0.05))
    held = asyncio.create_task(patient("run_python", user_id="ada", code=as_marked(mark)))
    await wait_until(lambda: marked(mark), "the first program runs")
    assert (await hurried.post("run_python", user_id="bob", code="print(1)")).status_code == 503
    held.cancel()
    await asyncio.wait({held})
    assert (await hurried("run_python", user_id="bob", code="print(1)"))["result"]["stdout"] == "1\n"
    assert list(scratch.iterdir()) == []
