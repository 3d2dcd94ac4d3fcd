"""Functions that a local executor calls, without a program that they are imported from."""

from typing import Any

from toolfleet_registry.local.local_function import LocalFunction
from toolfleet_registry.local.local_tools import LocalSource


class OwnFunctions(LocalSource):
    """These functions; `missing` is what could not be imported: "some" or "all" of the tools."""

    def __init__(self, *functions: Any, missing: str = "") -> None:
        self.functions = {f"local.{function.__name__}": LocalFunction.of(function) for function in functions}
        self._missing = missing

    @property
    def is_complete(self) -> bool:
        return not self._missing

    @property
    def is_away(self) -> bool:
        return self._missing == "all"

    def find(self, tool_name: str) -> LocalFunction | None:
        return self.functions.get(tool_name)
