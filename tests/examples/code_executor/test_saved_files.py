"""What a program saves in its output folder: it becomes the user's, within limits, whatever else lies there."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from modules.code_executor.isolation import isolation_for
from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for
from modules.files import FilePipeline, FileSettings, open_pipeline
from support.modules.example_modules import Module, in_process
from support.processes import is_gone

IN_NAMESPACES = pytest.mark.skipif(
    isolation_for(Limits(isolation="best")) != "namespaces", reason="this kernel or container gives no user namespaces"
)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")


pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture
def files(tmp_path: Path) -> FilePipeline:
    return open_pipeline(FileSettings(root=tmp_path / "files", max_bytes=1000, max_files=20))


@pytest.fixture
def module(files: FilePipeline) -> Module:
    return _module(files)


async def test_what_a_program_saves_is_listed_for_its_user(code_executor: Module, file_manager: Module) -> None:
    """For nobody else; with its size, its type, and who has saved it."""
    code = """
with open("output/table.csv", "w") as file:
    file.write("day,owls\\n1,7\\n")
with open("output/raw.bin", "wb") as file:
    file.write(bytes(range(256)))
"""
    reply = await code_executor("run_python", user_id="maker", code=code)
    assert reply["result"]["saved_files"] == [{"name": "raw.bin", "bytes": 256}, {"name": "table.csv", "bytes": 13}]
    assert "not_saved" not in reply["result"]

    listed = (await file_manager("list_files", user_id="maker"))["result"]["files"]
    assert [(file["name"], file["bytes"], file["source"]) for file in listed] == [
        ("raw.bin", 256, "code_executor"),
        ("table.csv", 13, "code_executor"),
    ]
    assert (await file_manager("list_files", user_id="other"))["result"]["files"] == []
    read = await file_manager("read_document", user_id="maker", name="table.csv")
    assert read["result"]["content"] == "day,owls\n1,7\n"
    raw = await file_manager("get_file", user_id="maker", name="raw.bin", start=254, max_bytes=9)
    assert base64.b64decode(raw["result"]["content_base64"]) == b"\xfe\xff"
    assert (raw["result"]["media_type"], raw["result"]["version"]) == ("application/octet-stream", 1)


async def test_a_program_improves_on_a_file(module: Module, files: FilePipeline) -> None:
    """What it read under a name, it may save under the same; in its folder outside the output nothing is kept."""
    await files.save("ada", "n.txt", b"1", "upload")
    code = """
n = int(open("n.txt").read()) + 1
open("output/n.txt", "w").write(str(n))
open("n.txt", "w").write("lost")
open("else.txt", "w").write("lost")
"""
    for _ in range(2):
        assert (await module("run_python", user_id="ada", code=code, files=["n.txt"]))["success"]
    assert await files.read("ada", "n.txt") == b"3"
    assert [(record.name, record.version, record.source) for record in await files.list("ada")] == [
        ("n.txt", 3, "code_executor")
    ]


async def test_a_program_that_fails_keeps_what_it_had_saved(module: Module, files: FilePipeline) -> None:
    """Its exit code is part of the result; one that had to be ended keeps nothing: its files may be half written."""
    code = "open('output/a', 'w').write('x')\n1 / 0"
    assert (await module("run_python", user_id="ada", code=code))["result"]["saved_files"]
    hurried = _module(files, wall_seconds=0.5)
    code = "open('output/b', 'w').write('x')\nimport time\ntime.sleep(60)"
    assert not (await hurried("run_python", user_id="ada", code=code))["success"]
    assert [record.name for record in await files.list("ada")] == ["a"]


ODD = {
    # name: how it is made, and why it is not saved
    "link": ("os.symlink('/etc/passwd', 'output/link')", "links, folders"),
    "dangling": ("os.symlink('nowhere', 'output/dangling')", "links, folders"),
    "pipe": ("os.mkfifo('output/pipe')", "links, folders"),  # to open it would take for ever
    "socket": ("socket.socket(socket.AF_UNIX).bind('output/socket')", "links, folders"),
    "folder": ("os.makedirs('output/folder/y'); open('output/folder/y/z', 'w')", "links, folders"),
    "hard": ("open('a', 'w'); os.link('a', 'output/hard')", "a hard link"),
    ".x": ("open('output/.x', 'w')", "must not start with a dot"),
    "x\\y": ("open('output/x\\\\y', 'w')", "there are no folders"),
    "x\u200b": ("open('output/x\\u200b', 'w')", "cannot be printed"),
    "x\\xff": ("open(b'output/x\\xff', 'w')", "cannot be printed"),
    "x\n": ("open('output/x\\n', 'w')", "cannot be printed"),
    "x" * 201: ("open('output/' + 'x' * 201, 'w')", "1 to 200 bytes"),
    "large": ("open('output/large', 'w').truncate(1001)", "1001 bytes; 1000 a file may have"),
    "hole": ("open('output/hole', 'w').truncate(15 * 2**20)", "1000 a file may have"),
}


async def test_what_is_no_plain_file_is_left_out(module: Module, files: FilePipeline) -> None:
    """With the reason; what lies beside it is saved."""
    code = "\n".join(
        ["import os, socket", *(code for code, _ in ODD.values()), "open('output/beside', 'w').write('x')"]
    )
    reply = await module("run_python", user_id="ada", code=code)

    told = {left_out["name"]: left_out["reason"] for left_out in reply["result"]["not_saved"]}
    assert told.keys() == ODD.keys()
    assert [name for name, (_, reason) in ODD.items() if reason not in told[name]] == []
    assert [record.name for record in await files.list("ada")] == ["beside"]


@ROOT_ONLY
async def test_a_device_is_left_out(files: FilePipeline) -> None:
    """In a sandbox nobody makes one."""
    code = "import os\nos.mknod('output/x', 0o600 | 0o020000, os.makedev(1, 5))"
    reply = await _module(files, isolation="none")("run_python", user_id="ada", code=code)
    assert [left_out["name"] for left_out in reply["result"]["not_saved"]] == ["x"]


@pytest.mark.parametrize(
    "instead", ["open('output', 'w')", "os.symlink('/etc', 'output')", "os.symlink('.', 'output')"]
)
async def test_what_stands_in_place_of_the_output_folder_is_not_followed(
    module: Module, files: FilePipeline, instead: str
) -> None:
    """Nothing is saved then."""
    reply = await module("run_python", user_id="ada", code=f"import os\nos.rmdir('output')\n{instead}")
    (left_out,) = reply["result"]["not_saved"]
    assert (left_out["name"], "no folder any more" in left_out["reason"]) == ("output", True)
    assert await files.list("ada") == []


async def test_a_link_in_place_of_the_working_folder_leads_nowhere(files: FilePipeline, tmp_path: Path) -> None:
    """What is saved comes from the folder that the program was given, wherever it has put it."""
    secret = tmp_path / "secret" / "output"
    secret.mkdir(parents=True)
    (secret / "diary").write_text("secret")
    code = f"""
import os
work = os.getcwd()
os.rename(work, work + "-moved")
os.symlink({str(secret.parent)!r}, work)
open(work + "-moved/output/mine", "w").write("x")
"""
    reply = await _module(files, isolation="none")("run_python", user_id="ada", code=code)
    assert reply["result"]["saved_files"] == [{"name": "mine", "bytes": 1}]
    assert [record.name for record in await files.list("ada")] == ["mine"]


async def test_an_output_folder_may_be_made_anew(module: Module) -> None:
    """Or be missing at the end: then nothing was saved."""
    code = "import os\nos.rmdir('output')\nos.mkdir('output')\nopen('output/a', 'w')"
    assert (await module("run_python", user_id="ada", code=code))["result"]["saved_files"][0]["name"] == "a"
    reply = await module("run_python", user_id="ada", code="import os\nos.rmdir('output')")
    assert reply["result"].keys() == {"exit_code", "stdout", "stderr", "seconds"}


async def test_what_is_written_after_the_end_is_not_saved(files: FilePipeline) -> None:
    """The folder is looked at when nothing of the program lives any more, also what it has left behind."""
    code = """
import subprocess, sys, time
swap = '''
import os, time
n = 0
while True:
    open("output/a.new", "w").write("x" * 900)
    os.replace("output/a.new", "output/a")
    os.symlink("/etc/passwd", "output/b.new")
    os.replace("output/b.new", "output/b")
    open("started", "w")
'''
print(subprocess.Popen([sys.executable, "-c", swap], start_new_session=True).pid)
import os
while not os.path.exists("started"): time.sleep(0.01)
"""
    reply = await _module(files, isolation="none")("run_python", user_id="ada", code=code)
    assert is_gone(int(reply["result"]["stdout"]))
    assert await files.read("ada", "a") == b"x" * 900
    assert "b" not in [record.name for record in await files.list("ada")]


@pytest.mark.parametrize(("count", "more"), [(20, "4 more"), (2000, "more than 984 more")])
async def test_too_many_files_are_left_out(module: Module, count: int, more: str) -> None:
    """The first by their names are saved; of very many not even all names are read."""
    code = f"for n in range({count}): open(f'output/{{n:04}}', 'w')"
    result = (await module("run_python", user_id="ada", code=code))["result"]
    assert len(result["saved_files"]) == 16
    assert result["not_saved"] == [{"name": more, "reason": "16 files are saved at most"}]


async def test_files_that_are_too_much_together_are_left_out(tmp_path: Path) -> None:
    """What one program may save is bounded: the answer holds all of it in memory."""
    module = _module(open_pipeline(FileSettings(root=tmp_path / "files", max_bytes=2**20)), saved_mb=1)
    code = "for name in 'abc': open(f'output/{name}', 'wb').write(bytes(600_000 if name != 'c' else 5))"
    result = (await module("run_python", user_id="ada", code=code))["result"]
    assert [file["name"] for file in result["saved_files"]] == ["a", "c"]
    reason = "it has 600000 bytes; 448576 are left of what one program may save"
    assert result["not_saved"] == [{"name": "b", "reason": reason}]


async def test_a_user_with_too_many_files_is_told(tmp_path: Path) -> None:
    """File by file."""
    module = _module(open_pipeline(FileSettings(root=tmp_path / "files", max_files=1)))
    result = (await module("run_python", user_id="ada", code="for n in 'ab': open(f'output/{n}', 'w')"))["result"]
    assert result["saved_files"] == [{"name": "a", "bytes": 0}]
    reason = "There are 1 files, the most allowed; delete one first."
    assert result["not_saved"] == [{"name": "b", "reason": reason}]


async def test_files_belong_to_somebody(module: Module) -> None:
    """A call without a user runs, and what it saves is lost, and said to be."""
    result = (await module("run_python", code="open('output/a', 'w'); print(7)"))["result"]
    assert result["stdout"] == "7\n"
    (left_out,) = result["not_saved"]
    assert left_out == {"name": "a", "reason": "Files belong to a user, and this call has no user_id."}


async def test_a_program_that_has_run_is_told_of_without_a_store(tmp_path: Path) -> None:
    """What it printed is there; what it saved is said to be lost. One that needs files is not started."""
    (tmp_path / "files").touch()
    module = _module(open_pipeline(FileSettings(root=tmp_path / "files" / "root")))
    result = (await module("run_python", user_id="ada", code="open('output/a', 'w'); print(7)"))["result"]
    assert (result["exit_code"], result["stdout"]) == (0, "7\n")
    reason = "the file store did not answer in time; perhaps it is saved all the same"
    assert result["not_saved"] == [{"name": "a", "reason": reason}]

    reply = await module("run_python", user_id="ada", code="print(7)", files=["a"])
    assert reply["error"] == "The program was not started: its files cannot be read now; try again later."
    assert reply["effect_state"] == "none"


async def test_no_input_can_stand_in_for_the_output(module: Module, files: FilePipeline) -> None:
    """A file that is called like the output folder is not given to a program."""
    await files.save("ada", "output", b"x", "upload")
    reply = await module("run_python", user_id="ada", code="print(7)", files=["output"])
    assert "No file can be called 'output' here" in reply["error"]


async def test_programs_side_by_side_save_for_their_own_users(module: Module, files: FilePipeline) -> None:
    """The same name, each for its own."""
    users = [f"user{n}" for n in range(4)]
    calls = [module("run_python", user_id=user, code=f"open('output/a', 'w').write('{user}')") for user in users]
    await asyncio.gather(*calls)
    assert [await files.read(user, "a") for user in users] == [user.encode() for user in users]


@IN_NAMESPACES
async def test_what_a_program_saves_in_tmp_is_its_users(module: Module, files: FilePipeline) -> None:
    """As what it saves in its output folder; what lies deeper, or in the other shared folders, is not."""
    code = """
import os, tempfile
open("/tmp/a.csv", "w").write("in tmp")
os.mkdir("/tmp/deeper")
open("/tmp/deeper/b", "w")
for folder in ("/var/tmp", "/dev/shm"): open(f"{folder}/c", "w")
tempfile.NamedTemporaryFile(delete=False)
print(os.listdir("/tmp"))
"""
    result = (await module("run_python", user_id="ada", code=code))["result"]
    assert result["saved_files"] == [{"name": "a.csv", "bytes": 6}]
    assert result["not_saved"] == [
        {"name": "/tmp/deeper", "reason": "it is no file: links, folders and the like are not saved"}
    ]
    assert [(record.name, record.source) for record in await files.list("ada")] == [("a.csv", "code_executor")]


@IN_NAMESPACES
async def test_of_two_files_with_one_name_the_one_in_output_is_saved(module: Module, files: FilePipeline) -> None:
    """And the other is said not to be."""
    code = "for folder in ('output', '/tmp'): open(f'{folder}/a', 'w').write(folder)"
    result = (await module("run_python", user_id="ada", code=code))["result"]
    assert result["not_saved"] == [{"name": "/tmp/a", "reason": "the one in output/ has the same name"}]
    assert await files.read("ada", "a") == b"output"


@IN_NAMESPACES
async def test_both_folders_share_one_limit(module: Module) -> None:
    """In number and in bytes; those in output come first."""
    code = "for n in range(10): open(f'output/{n}', 'w'); open(f'/tmp/t{n}', 'w')"
    result = (await module("run_python", user_id="ada", code=code))["result"]
    assert [file["name"] for file in result["saved_files"]] == [*"0123456789", *(f"t{n}" for n in range(6))]
    assert result["not_saved"] == [{"name": "4 more in /tmp", "reason": "16 files are saved at most"}]


ODD_IN_TMP = {
    "link": ("os.symlink('/etc/passwd', '/tmp/link')", "links, folders"),
    "own": ("os.symlink(os.getcwd() + '/output/beside', '/tmp/own')", "links, folders"),
    "pipe": ("os.mkfifo('/tmp/pipe')", "links, folders"),
    "socket": ("socket.socket(socket.AF_UNIX).bind('/tmp/socket')", "links, folders"),
    "hard": (
        "open('/tmp/y', 'w'); os.link('/tmp/y', '/tmp/hard'); os.mkdir('/tmp/z'); os.rename('/tmp/y', '/tmp/z/y')",
        "a hard link",
    ),
    "large": ("open('/tmp/large', 'w').truncate(1001)", "1001 bytes; 1000 a file may have"),
}


@IN_NAMESPACES
async def test_what_is_no_plain_file_in_tmp_is_left_out(module: Module, files: FilePipeline) -> None:
    """With the reason; what lies in the output folder is saved. What its owner may not read, it may make readable."""
    closed = "open('/tmp/closed', 'w'); os.chmod('/tmp/closed', 0)"
    codes = ["import os, socket", "open('output/beside', 'w')", *(code for code, _ in ODD_IN_TMP.values()), closed]
    result = (await module("run_python", user_id="ada", code="\n".join(codes)))["result"]

    told = {left_out["name"]: left_out["reason"] for left_out in result["not_saved"]}
    assert [name for name, (_, reason) in ODD_IN_TMP.items() if reason not in told[f"/tmp/{name}"]] == []
    assert "beside" in [record.name for record in await files.list("ada")]


@IN_NAMESPACES
async def test_a_program_that_fills_its_tmp_loses_only_its_own(module: Module, files: FilePipeline) -> None:
    """What fitted is saved, within the limits; the next program has all the room again."""
    small = _module(files, disk_mb=4)
    code = """
open("/tmp/first", "w").write("x")
try:
    with open("/tmp/big", "wb") as file:
        while True: file.write(bytes(2**16))
except OSError as exc:
    print(exc.errno)
"""
    for _ in range(2):
        result = (await small("run_python", user_id="ada", code=code))["result"]
        assert result["stdout"] == "28\n"
        assert [file["name"] for file in result["saved_files"]] == ["first"]
        assert [left_out["name"] for left_out in result["not_saved"]] == ["/tmp/big"]


@IN_NAMESPACES
async def test_what_still_writes_to_tmp_is_ended_before_it_is_saved(module: Module, files: FilePipeline) -> None:
    """Of a file that a process in the background holds open, what had been written is saved."""
    code = """
import os, subprocess, sys, time
child = "import time; file = open('/tmp/log', 'w'); file.write('so far'); file.flush(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
while not os.path.exists("/tmp/log") or not os.path.getsize("/tmp/log"): time.sleep(0.01)
"""
    result = (await module("run_python", user_id="ada", code=code))["result"]
    assert result["saved_files"] == [{"name": "log", "bytes": 6}]
    assert await files.read("ada", "log") == b"so far"


def _module(files: FilePipeline, **limits: Any) -> Module:
    return in_process("code_executor", module_for(Limits(**limits), files).app)
