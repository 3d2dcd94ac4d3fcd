"""What a command that a module has started reads of the module, as the same user and with no other rights."""

import sys
from pathlib import Path

import pytest

from support.modules.example_modules import EXAMPLES
from support.processes import python_program
from support.programs.onlookers import WITHOUT_RIGHTS, read_by_its_user

MODULE = "import modules.{name}.main; print('ready', flush=True); input()"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("name", ["claude_code", "code_executor", "deployer", "file_manager"])
def test_a_modules_process_is_hidden_from_what_it_starts(tmp_path: Path, name: str) -> None:
    """Neither its environment, which holds its key, nor its memory, its open files or its folder."""
    env = {"PYTHONPATH": str(EXAMPLES), "TOOLFLEET_MODULE_KEY": "hunter2" * 6, "DEPLOYER_ROOT": str(tmp_path)}
    env |= {"CLAUDE_CODE_ROOT": str(tmp_path), "FILE_MANAGER_ROOT": str(tmp_path), "CODE_EXECUTOR_ISOLATION": "none"}
    env |= {"DEPLOYER_ISOLATION": "none", "CLAUDE_CODE_ISOLATION": "none"}
    with python_program(WITHOUT_RIGHTS, "-c", MODULE.format(name=name), env=env, stdin=True) as module:
        assert module.stdout is not None
        assert module.stdout.readline() == "ready\n"
        assert read_by_its_user(module.pid) == set()
