"""Makes a module's tool of a tool of LangChain's, which a file has by its `@tool` or makes in another way.

LangChain is no dependency of ours: a file that has such a tool has imported it.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from toolfleet_modules.hosts.processes.load_plan import PACKAGE
from toolfleet_modules.hosts.processes.tag_tools import things_in
from toolfleet_modules.sdk.offer import Facts
from toolfleet_modules.sdk.tool import in_words
from toolfleet_registry.functions.failures import ToolError
from toolfleet_registry.functions.signature import without_titles

_TOOLS = "langchain_core.tools"
_FILLED_IN = frozenset({"callbacks", "run_manager"})  # by LangChain itself, as what is annotated as `RunnableConfig`


def langchain_tools_in(module: ModuleType) -> list[Any]:
    """Return those that a file has at its top, alone or in lists, but for those of another file."""
    return [each for each in things_in(module) if is_langchain_tool(each) and _is_of(module, each)]


def is_langchain_tool(thing: Any) -> bool:
    """Return whether it is a `BaseTool` of LangChain's."""
    tools = sys.modules.get(_TOOLS)
    return tools is not None and isinstance(thing, tools.BaseTool)


def langchain_function(tool: Any) -> tuple[Callable[..., Any], Facts]:
    """Return the function of its calls, and the facts about it.

    Raises `TypeError` or `ValueError` for a tool that only an agent of LangChain's can call.
    """
    own_schema, names = _schema_of(tool)
    schema: dict[str, Any] = {"properties": {}, "additionalProperties": False, **own_schema}
    if missing := sorted(_needed(tool) - schema["properties"].keys() - names):
        raise ValueError(f"{tool.name} needs {missing[0]!r}, which only an agent of LangChain's fills in.")
    facts: Facts = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
        "output_schema": None,
    }
    own = tool.model_copy(
        update={"handle_tool_error": False, "handle_validation_error": False}
    )  # else a failure is a result
    if not _is_async(tool):

        def run_plain(**arguments: Any) -> Any:
            with _refusals(tool, arguments):
                return own.invoke(arguments)

        return run_plain, facts

    async def run(**arguments: Any) -> Any:
        with _refusals(tool, arguments):
            return await own.ainvoke(arguments)

    return run, facts


def _schema_of(tool: Any) -> tuple[dict[str, Any], AbstractSet[str]]:
    """Return the schema of what a model writes, as the tool's own model of the arguments reads it, and that model's names of them."""
    model = tool.args_schema
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        convert = importlib.import_module("langchain_core.utils.function_calling").convert_to_openai_function
        return dict(model if isinstance(model, dict) else convert(tool)["parameters"]), frozenset()
    names = tool.tool_call_schema.model_fields.keys()
    schema = without_titles(model.model_json_schema())
    for field in model.model_fields.keys() - names:  # what LangChain fills in, and no model
        name = model.model_fields[field].alias or field
        schema["properties"].pop(name, None)
        schema["required"] = [each for each in schema.get("required", ()) if each != name]
    schema.pop("description", None)  # of the arguments' model
    return schema, names


@contextmanager
def _refusals(tool: Any, arguments: Mapping[str, Any]) -> Generator[None]:
    """Hold the arguments against the model of them, and raise what the tool says to its model as `ToolError`."""
    model = tool.args_schema
    if isinstance(model, type) and issubclass(model, BaseModel):
        try:
            model.model_validate(dict(arguments))
        except ValidationError as exc:
            raise ToolError(f"Invalid arguments for {tool.name}: {in_words(exc)}", effect_state="none") from exc
    try:
        yield
    except sys.modules[_TOOLS].ToolException as exc:
        how = tool.handle_tool_error
        raise ToolError(how if isinstance(how, str) else str(how(exc) if callable(how) else exc)) from exc


def _is_of(module: ModuleType, tool: Any) -> bool:
    place = getattr(_function_of(tool), "__module__", "")
    is_others = place != module.__name__ and place.startswith(f"{PACKAGE}.")
    return not (is_others and any(tool is each for each in things_in(sys.modules[place])))


def _function_of(tool: Any) -> Any:
    return getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)._run  # noqa: SLF001 - what a subclass defines


def _is_async(tool: Any) -> bool:
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not sys.modules[_TOOLS].BaseTool._arun  # noqa: SLF001 - as above


def _needed(tool: Any) -> set[str]:
    """Return the parameters of its function that have no default, and that LangChain does not fill in for every caller."""
    parameters = list(inspect.signature(_function_of(tool)).parameters.values())
    if not hasattr(tool, "func"):
        del parameters[:1]  # self
    elif tool.args_schema is None:
        return set()  # one text, under any name
    return {
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        and each.name not in _FILLED_IN
        and "RunnableConfig" not in str(each.annotation)
    }
