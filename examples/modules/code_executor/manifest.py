"""What `code_executor` offers, and how long that may take."""

from pathlib import Path

from modules.code_executor.isolation import Isolation, described, isolation_for, where_saved
from modules.code_executor.languages import SHELL
from modules.code_executor.limits import Limits
from modules.code_executor.tools import FILES_SECONDS, CodeExecutor
from modules.files import FilePipeline
from toolfleet.sdk import Module

_START_SECONDS = 10  # for starting the program on a busy machine, and for ending it


def module_for(limits: Limits, files: FilePipeline) -> Module:
    """The module on the files of one pipeline, which it closes at its end.

    The limits are in the tools' descriptions, so that a model plans with them, and in their time limits; so is what keeps
    programs apart. Raises `RuntimeError` if that is not what the settings demand.
    """
    isolation = isolation_for(limits)
    tools = CodeExecutor(limits, isolation, files)
    module = Module("code_executor", description="Runs programs in Python and of the shell under limits.")
    module.on_shutdown(files.close)
    seconds = limits.queue_seconds + limits.wall_seconds + _START_SECONDS + 2 * FILES_SECONDS
    bounds = _bounds(limits, isolation)
    # A program may send what must not be sent twice.
    module.add(
        tools.run_python,
        description=f"Run a Python program and return its exit_code, stdout and stderr. {bounds}",
        permission="user",
        effect="once",
        timeout_seconds=seconds,
    )
    module.add(
        tools.run_shell,
        description=f"Run commands of {Path(SHELL).name} as one program, and return its exit_code, stdout and stderr. {bounds}",
        permission="admin",
        effect="once",
        timeout_seconds=seconds,
    )
    module.add(tools.load_file, permission="user", effect="read")
    return module


def _bounds(limits: Limits, isolation: Isolation) -> str:
    """What holds for every program, in whatever it is written."""
    return (
        "It starts in an empty folder that is removed afterwards. "
        f"Files that it saves directly {where_saved(isolation)} become files of the user, if it ends by itself; "
        f"{limits.saved_files} at most. It may use {limits.wall_seconds:g} s, {limits.cpu_seconds} s of processor "
        f"time and {limits.memory_mb} MB. {described(isolation, network=limits.network)}"
    )
