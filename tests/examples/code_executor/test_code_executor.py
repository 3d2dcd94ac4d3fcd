"""`code_executor`: programs run, keep within their limits, and leave nothing behind.

Where a test and its program meet in a folder, the program runs without a sandbox; those in one: `test_code_executor_sandbox.py`.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from modules.code_executor import programs
from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for
from modules.files import FileSettings, open_pipeline
from support.modules.example_modules import Module, running, serving_here
from support.modules.workshop import executor, processes_of
from support.processes import is_gone
from support.waiting import wait_until, wait_until_answered

FOREVER = "import time\nwhile True: time.sleep(1)"


pytestmark = pytest.mark.usefixtures("scratch")


async def save(tmp_path: Path, user_id: str, name: str, content: bytes) -> None:
    async with open_pipeline(FileSettings(root=tmp_path / "files")) as files:
        await files.save(user_id, name, content, "upload")


def pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


async def test_a_program_runs(code_executor: Module) -> None:
    """What it prints comes back, on two streams, and how it ended."""
    code = "import sys\nprint('Eule', 6 * 7, '🦉')\nprint('careful', file=sys.stderr)\nsys.exit(3)"
    result = (await code_executor("run_python", code=code))["result"]
    assert result.pop("seconds") > 0
    assert result == {"exit_code": 3, "stdout": "Eule 42 🦉\n", "stderr": "careful\n"}


@pytest.mark.parametrize(
    ("code", "last_line"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: invalid syntax"),
        ("\0", "SyntaxError: source code cannot contain null bytes"),
        ("input()", "EOFError: EOF when reading a line"),  # standard input is closed
        ("open('../program.py/x')", "NotADirectoryError: [Errno 20] Not a directory: '../program.py/x'"),
    ],
)
async def test_a_program_that_fails_is_a_result(code_executor: Module, code: str, last_line: str) -> None:
    """The model reads the traceback, without the names of the machine's folders."""
    reply = await code_executor("run_python", code=code)
    assert reply["success"]
    assert reply["result"]["exit_code"] == 1
    assert last_line in reply["result"]["stderr"].strip().splitlines()[-1]
    assert "run_python-" not in reply["result"]["stderr"]


async def test_a_program_computes_on_the_users_files(code_executor: Module, file_manager: Module) -> None:
    """A CSV file that one module wrote is another's input; the program gets a copy."""
    rows = [["day", "owls"], *([day, day * 2] for day in range(1, 11))]
    await file_manager("create_document", user_id="analyst", name="owls.csv", rows=rows)
    code = """
import csv, os
print(sum(int(row["owls"]) for row in csv.DictReader(open("owls.csv"))), sorted(os.listdir(".")))
os.remove("owls.csv")
"""
    reply = await code_executor("run_python", user_id="analyst", code=code, files=["owls.csv"])
    assert reply["result"]["stdout"] == "110 ['output', 'owls.csv']\n"
    assert (await file_manager("read_document", user_id="analyst", name="owls.csv"))["success"]


async def test_a_program_may_import_the_users_files(tmp_path: Path) -> None:
    """A file of Python is a module for it."""
    await save(tmp_path, "ada", "owls.py", b"COUNT = 7")
    module = executor(tmp_path)
    reply = await module("run_python", user_id="ada", code="import owls; print(owls.COUNT)", files=["owls.py"])
    assert reply["result"]["stdout"] == "7\n"


@pytest.mark.parametrize(
    ("user_id", "name", "told"),
    [
        ("ada", "missing.csv", "There is no file 'missing.csv'"),
        ("ada", "../eve/diary", "is not a file's name"),
        ("ada", "diary", "There is no file 'diary'"),  # it is eve's
        (None, "diary", "no user_id"),
    ],
)
async def test_a_program_gets_no_other_files(tmp_path: Path, user_id: str | None, name: str, told: str) -> None:
    """Only the caller's own, by plain names; else the program is not started."""
    await save(tmp_path, "eve", "diary", b"secret")
    reply = await executor(tmp_path)("run_python", user_id=user_id, code="print(1)", files=[name])
    assert not reply["success"]
    assert told in reply["error"]


async def test_our_environment_stays_ours(code_executor: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program sees none of the module's environment variables, where secrets are kept."""
    monkeypatch.setenv("MY_SECRET", "hunter2")
    reply = await code_executor("run_python", code="import os; print(sorted(os.environ), 'hunter2' in str(os.environ))")
    names = ["HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR"]
    assert reply["result"]["stdout"] == f"{names} False\n"


async def test_each_program_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """It has but an empty folder for its output at the start, and is gone at the end, whatever the program did to it."""
    code = """
import os
print(*os.listdir("."), len(os.listdir("output")), *os.getcwd().split("/"), sep=" ")
os.makedirs("deep/er")
open("deep/er/file", "w").close()
os.chmod("deep/er", 0)
os.chmod("deep", 0)
"""
    replies = [await executor(tmp_path)("run_python", code=code) for _ in range(2)]
    folders = [reply["result"]["stdout"].split() for reply in replies]
    assert [folder[:2] for folder in folders] == [["output", "0"]] * 2
    assert folders[0] != folders[1]


async def test_a_program_that_sleeps_for_ever_is_ended(tmp_path: Path) -> None:
    """After its wall time; the model is told what it had printed."""
    reply = await executor(tmp_path, wall_seconds=0.5)("run_python", code=f"print('so far')\n{FOREVER}")
    assert reply["error"] == "The program was ended: it ran longer than 0.5 s. Its stdout ended in: so far\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        # one that ignores the first warning
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    ],
)
async def test_a_program_that_computes_for_ever_is_ended(tmp_path: Path, code: str) -> None:
    """After its processor time."""
    reply = await executor(tmp_path, cpu_seconds=1, wall_seconds=30)("run_python", code=code)
    assert reply["error"].startswith("The program was ended: it used more than 1 s of processor time.")


async def test_a_program_that_wants_all_memory_gets_an_error(tmp_path: Path) -> None:
    """Python says so itself, and the model reads it."""
    reply = await executor(tmp_path, memory_mb=128)("run_python", code="x = bytearray(2**30)")
    assert reply["result"]["exit_code"] == 1
    assert "MemoryError" in reply["result"]["stderr"]


async def test_a_program_that_writes_a_huge_file_gets_an_error(tmp_path: Path) -> None:
    """The disk is everybody's."""
    reply = await executor(tmp_path, file_mb=1)("run_python", code="open('f', 'wb').write(bytes(2**21))")
    assert "File too large" in reply["result"]["stderr"]


async def test_a_flood_of_output_is_cut(tmp_path: Path) -> None:
    """The beginning and the end are kept, with a note of how much is missing, on each stream."""
    code = "import sys\nfor s in sys.stdout, sys.stderr:\n    s.write('first' + 'x' * 10**6 + 'last')"
    result = (await executor(tmp_path, output_bytes=100)("run_python", code=code))["result"]
    for stream in ("stdout", "stderr"):
        assert result[stream].startswith("firstxxx")
        assert result[stream].endswith("xxxlast")
        assert "\n[… 999909 bytes left out …]\n" in result[stream]


async def test_an_endless_flood_of_output_is_ended(tmp_path: Path) -> None:
    """It fills neither memory nor the answer."""
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    reply = await executor(tmp_path, output_bytes=100, wall_seconds=0.5)("run_python", code=code)
    assert reply["error"].startswith("The program was ended")
    assert len(reply["error"]) < 300


async def test_bytes_that_are_no_text_come_back_as_text(code_executor: Module) -> None:
    """What is not UTF-8 is replaced, so that the answer stays JSON."""
    reply = await code_executor("run_python", code="import os; os.write(1, b'a\\xff\\xed\\xa0\\x80b')")
    assert reply["result"]["stdout"].startswith("a\ufffd")
    assert reply["result"]["stdout"].endswith("b")


@pytest.mark.parametrize(
    "leave_the_group",
    ["pass", "os.setsid()"],  # the second is not reached by a signal to the program's group
)
async def test_too_many_processes_are_all_ended(tmp_path: Path, leave_the_group: str) -> None:
    """A program that forks and forks ends with all its children. Forty at most here: a real bomb would shake others."""
    noted = tmp_path / "pids"
    code = f"""
import os, time
for _ in range(40):
    if os.fork() == 0:
        {leave_the_group}
        with open({str(noted)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        time.sleep(3600)
    while not os.path.exists({str(noted)!r}) or not os.path.getsize({str(noted)!r}):  # one child at least gets that far
        time.sleep(0.001)
time.sleep(3600)
"""
    reply = await executor(tmp_path, processes=5, isolation="none")("run_python", code=code)
    assert reply["error"].startswith("The program was ended: it had more than 5 processes at once.")
    found = pids(noted)
    assert found
    assert all(is_gone(pid) for pid in found)
    assert processes_of(tmp_path) == {}  # nor one that had no time to note itself


async def test_what_a_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    """A background process does not outlive the call, even in a session of its own with the output still open."""
    code = """
import subprocess
print(subprocess.Popen(["sleep", "3600"], start_new_session=True).pid)
"""
    reply = await executor(tmp_path, isolation="none")("run_python", code=code)
    assert reply["result"]["exit_code"] == 0
    assert is_gone(int(reply["result"]["stdout"]))


async def test_a_client_that_hangs_up_ends_its_program(tmp_path: Path) -> None:
    """Nobody waits for it any more; the module counts it."""
    noted = tmp_path / "pids"
    with serving_here("code_executor", tmp_path, CODE_EXECUTOR_ISOLATION="none") as module:
        async with module.client() as client:
            call = asyncio.create_task(client.post("/execute", json=_noting(noted)))
            await wait_until(lambda: pids(noted), "the program runs")
            call.cancel()
            await asyncio.wait({call})
        await wait_until(lambda: is_gone(pids(noted)[0]), "the program has ended")
        await wait_until_answered(lambda: at_rest(module), "nothing runs in the module")
        assert (await module.get("/health"))["cancelled"] == 1


async def at_rest(module: Module) -> bool:
    return not (await module.get("/health"))["running"]


async def test_a_module_that_is_killed_takes_its_programs_along(tmp_path: Path, scratch: Path) -> None:
    """Not even a killed module leaves a program or its folder behind."""
    noted = tmp_path / "pids"
    with running("code_executor", tmp_path, CODE_EXECUTOR_ISOLATION="none") as module:
        call = asyncio.create_task(module.post("run_python", code=_noting(noted)["arguments"]["code"]))
        await wait_until(lambda: pids(noted), "the program runs")
        assert module.process is not None
        module.process.kill()
        await asyncio.wait({call})
        assert call.exception() is not None
    await wait_until(lambda: is_gone(pids(noted)[0]), "the program has ended")
    await wait_until(lambda: not any(scratch.iterdir()), "its folder is gone")


async def test_a_cancelled_call_ends_its_program(tmp_path: Path) -> None:
    """Before the cancelled call itself returns."""
    noted = tmp_path / "pids"
    call = asyncio.create_task(
        executor(tmp_path, isolation="none")("run_python", code=_noting(noted)["arguments"]["code"])
    )
    await wait_until(lambda: pids(noted), "the program runs")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert is_gone(pids(noted)[0])


async def test_a_module_without_room_says_so(tmp_path: Path) -> None:
    """A program too many is sent away with `Retry-After`, and not started; later there is room again.

    Where nothing keeps programs apart, the second is one too many.
    """
    module = executor(tmp_path, isolation="none", concurrency=2, queue_seconds=0.05, wall_seconds=20)
    started, go_on = tmp_path / "started", tmp_path / "go_on"
    code = f"""
import os, time
open({str(started)!r}, "w").close()
while not os.path.exists({str(go_on)!r}): time.sleep(0.01)
"""
    first = asyncio.create_task(module("run_python", code=code))
    await wait_until(started.exists, "the first program runs")
    second = await module.post("run_python", code="print(2)")
    assert (second.status_code, second.headers["Retry-After"]) == (503, "20")

    go_on.touch()
    assert (await first)["success"]
    assert (await module("run_python", code="print(3)"))["result"]["stdout"] == "3\n"


async def test_a_launcher_that_dies_is_a_failed_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a call that hangs."""
    broken = tmp_path / "launcher.py"
    broken.write_text("raise SystemExit(7)")
    module = executor(tmp_path)
    monkeypatch.setattr(programs, "LAUNCHER", broken)
    reply = await module("run_python", code="print(1)")
    assert reply["error"] == "code_executor.run_python failed inside the module (RuntimeError); its log says why."


@pytest.mark.parametrize("name", ["run_python", "run_shell"])
def test_the_tools_time_limit_follows_the_settings(name: str) -> None:
    """The fleet waits longer than the module takes."""
    tools = module_for(Limits(wall_seconds=60, queue_seconds=7), open_pipeline()).manifest.tools
    (tool,) = (tool for tool in tools if tool.name == f"code_executor.{name}")
    assert tool.timeout_seconds is not None
    assert tool.timeout_seconds > 67
    assert "60 s" in tool.description


def _noting(path: Path) -> dict[str, Any]:
    """A call of a program that notes its process id, and then runs for ever."""
    code = f"import os\nopen({str(path)!r}, 'w').write(str(os.getpid()))\n{FOREVER}"
    return {"tool_name": "code_executor.run_python", "arguments": {"code": code}}
