"""What `code_executor` offers, and how long that may take."""

from modules.code_executor.isolation import described, isolation_for, where_saved
from modules.code_executor.limits import Limits
from modules.code_executor.tools import FILES_SECONDS, CodeExecutor
from modules.files import FilePipeline
from toolfleet.sdk import Module

_START_SECONDS = 10  # for starting the program on a busy machine, and for ending it


def module_for(limits: Limits, files: FilePipeline) -> Module:
    """The module on the files of one pipeline, which it closes at its end.

    The limits are in the tool's description, so that a model plans with them, and in its time limit; so is what keeps
    programs apart. Raises `RuntimeError` if that is not what the settings demand.
    """
    isolation = isolation_for(limits)
    tools = CodeExecutor(limits, isolation, files)
    module = Module("code_executor", description="Runs Python programs under limits.")
    module.on_shutdown(files.close)
    module.add(
        tools.run_python,
        description="Run a Python program and return its exit_code, stdout and stderr. It starts in an empty folder that is "
        f"removed afterwards. Files that it saves directly {where_saved(isolation)} become files of the user, if it ends by "
        f"itself; {limits.saved_files} at most. It may use {limits.wall_seconds:g} s, {limits.cpu_seconds} s of processor "
        f"time and {limits.memory_mb} MB. {described(isolation, network=limits.network)}",
        permission="user",
        effect="once",  # the program may send what must not be sent twice
        timeout_seconds=limits.queue_seconds + limits.wall_seconds + _START_SECONDS + 2 * FILES_SECONDS,
    )
    return module
