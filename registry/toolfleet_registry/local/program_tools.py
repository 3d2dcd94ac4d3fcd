"""Defines the module `programs`: the tools with which a model runs Python that calls its other tools, and the names of these there."""

import functools
from typing import Final

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import PROGRAMS, RUN_PROGRAM, provider_name
from toolfleet_registry.settings import Settings

SHOW_PROGRAM: Final = f"{PROGRAMS}.show"
"""The tool that shows a program to its user."""

ON_UNKNOWN: Final = "on_unknown"
"""The keyword of a call in a program that says what to do when its outcome is unknown, unless its tool has such a parameter."""

LACKS: Final = (
    "class inheritance (no own exceptions, no Enum), yield, property, staticmethod, classmethod, del, async with, async "
    "comprehensions, except*, gather(return_exceptions=...), asyncio.create_task, asyncio.wait_for, TaskGroup"
)
"""The parts of Python that the interpreter lacks, for a model."""

MODULES: Final = (
    "asyncio (gather, run, sleep), base64, bisect, collections, copy, csv, dataclasses, datetime, decimal, functools, "
    "hashlib, itertools, json, math, random, re, time, tomllib, typing"
)
"""The modules that a program can import."""

_RUN = """
    Run a Python program that calls your tools, with loops, conditions and asyncio.gather, and return one value. Each tool
    is an async function under the name you know, with a dot as two underscores and a hyphen as one:
    `rows = await crm__list(limit=50)`. Use keyword arguments only, and always `await`. End with `return value`: only that
    comes back. A call that fails raises RuntimeError("<code> (effect <state>): ..."). A call whose outcome is unknown ends
    the program unless it has `on_unknown="return"`; then it returns {{"outcome_unknown": true, ...}}. This Python lacks
    {lacks}. It has these modules only: {modules}. No files, no network; the clock stands still, and sleep does not wait.
    At most {calls} calls, and no program in a program. A program that takes long, as where people must approve a call,
    goes on, and you get {{"program": id, "state": "waiting"}}: do not run it again. In a conversation you are woken at its
    end; `programs.show` tells it, too.
"""
_SHOW = "Show a program of yours: its state, its calls, and its value or error once it has ended."
_LONGEST_ID = 256
_SOURCE = "The program: the body of an async function."


def probe_programs(settings: Settings) -> dict[str, ModuleManifest]:
    """Return the manifest of `programs`, in addition to the results of `discover`; empty without the setting."""
    if not settings.programs:
        return {}
    said = _RUN.format(lacks=LACKS, modules=MODULES, calls=settings.program_limit("calls"))
    most = settings.program_limit("source_bytes")
    tool = ToolDefinition(
        name=RUN_PROGRAM,
        description=" ".join(said.split()),
        required_permission="user",
        input_schema={
            "type": "object",
            "properties": {
                "source": {"type": "string", "minLength": 1, "maxLength": most, "description": _SOURCE},
            },
            "required": ["source"],
            "additionalProperties": False,
        },
        effect="once",
        tags=["programs", "python", "code", "loop"],
    )
    program = {"type": "string", "minLength": 1, "maxLength": _LONGEST_ID, "description": "The program's id."}
    show = ToolDefinition(
        name=SHOW_PROGRAM,
        description=_SHOW,
        required_permission="user",
        input_schema={
            "type": "object",
            "properties": {"program": program},
            "required": ["program"],
            "additionalProperties": False,
        },
        effect="read",
        tags=["programs"],
    )
    return {PROGRAMS: ModuleManifest(module_name=PROGRAMS, description="Programs that call tools.", tools=[tool, show])}


@functools.lru_cache(16_384)
def function_name(tool_name: str) -> str:
    """Return the name of a tool's function in a program: its name for model providers, without hyphens."""
    return provider_name(tool_name).replace("-", "_")
