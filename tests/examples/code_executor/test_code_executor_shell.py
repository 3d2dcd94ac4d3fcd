"""`run_shell`: the same limits, files and walls as `run_python` has, for commands of the shell."""

from pathlib import Path
from typing import Any

import pytest

from modules.code_executor.isolation import Isolation, described, isolation_for
from modules.code_executor.languages import SHELL
from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for
from modules.files import FileSettings, open_pipeline
from support.modules.example_modules import Module
from support.modules.workshop import executor

ISOLATION = isolation_for(Limits(isolation="best"))
in_namespaces = pytest.mark.skipif(
    ISOLATION != "namespaces", reason="this kernel or container gives no user namespaces"
)


@pytest.mark.parametrize("isolation", ["best", "none"])
async def test_commands_run(tmp_path: Path, isolation: Any) -> None:
    """However programs are kept apart: both streams come back, and the exit code of the last command."""
    module = executor(tmp_path, isolation=isolation)
    commands = "printf '3\\n1\\n2\\n' | sort -r\nname=Eule\necho \"$name 🦉\" >&2\nls -A\n(exit 3)"
    result = (await module("run_shell", commands=commands, user_id="ada"))["result"]

    assert result.pop("seconds") > 0
    assert result == {"exit_code": 3, "stdout": "3\n2\n1\noutput\n", "stderr": "Eule 🦉\n"}


@pytest.mark.parametrize(
    ("commands", "exit_code", "stderr"),
    [
        ("no-such-owl", 127, "program.sh: line 1: no-such-owl: "),
        ("set -e\nfalse\necho never", 1, ""),
        ("if then", 2, "program.sh: line 1: syntax error"),
        ("kill -9 $$", -9, ""),
        ("", 0, ""),
        ("cat", 0, ""),  # there is nothing to read
    ],
)
async def test_what_goes_wrong_is_told(code_executor: Module, commands: str, exit_code: int, stderr: str) -> None:
    """With the shell's own words, in which the folder is not."""
    result = (await code_executor("run_shell", commands=commands))["result"]

    assert result["exit_code"] == exit_code
    assert stderr in result["stderr"]
    assert "/home/" not in result["stderr"]
    assert result["stdout"] == ""


async def test_files_go_in_and_come_out(tmp_path: Path) -> None:
    """A user's file lies in the working folder, and what is saved in output/ is that user's, and nobody else's."""
    async with open_pipeline(FileSettings(root=tmp_path / "files")) as files:
        await files.save("ada", "owls.csv", b"barn\neagle\n", "upload")
        module = executor(tmp_path)
        told = await module("run_shell", commands="wc -l < owls.csv > output/n.txt", files=["owls.csv"], user_id="ada")

        assert told["result"]["saved_files"] == [{"name": "n.txt", "bytes": 2}]
        assert await files.read("ada", "n.txt") == b"2\n"
        assert await files.list("bob") == []
        refused = await module("run_shell", commands="cat owls.csv", files=["owls.csv"], user_id="bob")
        assert refused["error"] == "There is no file 'owls.csv'; list the files to see which there are."


async def test_the_environment_is_a_programs(code_executor: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no variable of the module's; no file of the module's user is read at its start."""
    monkeypatch.setenv("BASH_ENV", "/etc/passwd")
    monkeypatch.setenv("OWL_SECRET", "hush")
    result = (await code_executor("run_shell", commands="env | cut -d= -f1"))["result"]
    own = {"HOME", "TMPDIR", "PYTHONPATH", "PATH", "LANG"}

    assert own <= set(result["stdout"].split()) <= own | {"PWD", "OLDPWD", "SHLVL", "_"}


@in_namespaces
async def test_commands_are_in_the_sandbox(tmp_path: Path) -> None:
    """No file of others, no network, no processes but their own, no more rights."""
    store = tmp_path / "files"
    commands = (
        f"ls {store} /etc/shadow /srv; ls /home | wc -l; ls -d /proc/[0-9]* | wc -l; tail -n +3 /proc/net/dev | wc -l; "
        "grep CapEff /proc/self/status; touch /usr/owl"
    )
    result = (await executor(tmp_path)("run_shell", commands=commands))["result"]
    folders, processes, devices, *_, rights = result["stdout"].split()

    assert result["stderr"].count("No such file") == 3
    assert "Read-only file system" in result["stderr"]
    assert (folders, devices, int(rights, 16)) == ("1", "1", 0)
    assert int(processes) <= 4  # the sandbox's own, the shell and ls


@pytest.mark.parametrize("isolation", ["namespaces", "user with landlock", "none"])
def test_the_description_is_as_honest_as_the_others(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps a program apart, or that nothing does, stands in both, in the same words; so do limits and time."""
    monkeypatch.setattr("modules.code_executor.manifest.isolation_for", lambda _: isolation)
    tools = {tool.name: tool for tool in module_for(Limits(), open_pipeline()).manifest.tools}
    python, shell = tools["code_executor.run_python"], tools["code_executor.run_shell"]
    same = "It starts in an empty folder"

    assert Path(SHELL).name in shell.description
    assert shell.description.partition(same)[2] == python.description.partition(same)[2]
    assert described(isolation, network=False) in shell.description
    assert shell.timeout_seconds == python.timeout_seconds
    assert (python.required_permission, shell.required_permission) == ("user", "admin")
