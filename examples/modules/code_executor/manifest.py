"""What `code_executor` offers."""

from modules.code_executor.limits import Limits
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition, ToolParameter

_START_SECONDS = 10  # for starting the program on a busy machine, and for ending it

_CODE = ToolParameter(name="code", type="string", description="A Python program. Print what you want to see.")
_FILES = ToolParameter(
    name="files",
    type="array",
    description="Names of the user's files that the program reads, such as ['sales.csv']: it finds copies of them in "
    "its working folder.",
    required=False,
)


def manifest_for(limits: Limits) -> ModuleManifest:
    """The limits are in the tool's description, so that a model plans with them, and in its time limit."""
    run_python = ToolDefinition(
        name="code_executor.run_python",
        description="Run a Python program and return its exit_code, stdout and stderr. It starts in an empty folder "
        f"that is removed afterwards, and may use {limits.wall_seconds:g} s, {limits.cpu_seconds} s of processor time "
        f"and {limits.memory_mb} MB.",
        parameters=[_CODE, _FILES],
        # A flat parameter cannot say what an array holds, and some model providers refuse an array that does not.
        input_schema={
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": _CODE.description},
                "files": {"type": "array", "description": _FILES.description, "items": {"type": "string"}},
            },
            "required": ["code"],
            "additionalProperties": False,
        },
        required_permission="user",
        effect="once",  # the program may send what must not be sent twice
        timeout_seconds=limits.queue_seconds + limits.wall_seconds + _START_SECONDS,
    )
    return ModuleManifest(
        module_name="code_executor",
        description="Runs Python programs under limits.",
        tools=[run_python],
    )
