"""Describes an agent's profile: which tools it may use, at most with which permission, and what stands around its calls."""

import hashlib
import json
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from toolfleet_registry.config.agents.middleware_specs import HumanInTheLoopSpec, MiddlewareSpec
from toolfleet_registry.config.agents.tool_selectors import Selectors, never_selects, selects
from toolfleet_registry.contracts import Level, ToolDefinition
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import is_module_name

AGENT_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"
"""What a profile can be named."""

MOST_PROFILES = 1_000
"""Of one fleet: every process has all of them in memory."""

_MOST_MIDDLEWARE = 50


def check_agent_name(name: str) -> None:
    """Raise `ValueError` for what no profile can be named."""
    if not re.fullmatch(AGENT_NAME, name):
        raise ValueError(f"an agent cannot be named {name[:80]!r}: a letter, then letters, digits, '_' and '-'")


class AgentProfile(BaseModel):
    """One `[agents.NAME]`. It takes from what its caller may do, and adds nothing to that."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    description: Annotated[str, Field(max_length=2_000)] = ""
    """What the agent is for."""
    mode: Literal["primary", "subagent", "all"] = "primary"
    """Who names it: a program that talks to people, another agent beside its own (`primary/subagent`), or both."""
    tools: Selectors | None = None
    """The tools that it may use: names, patterns and tags. `None`: all that its caller may."""
    allowed_modules: frozenset[str] | Literal["*"] = "*"
    """The modules that it reaches, of those that its caller does."""
    permission_at_most: Level = "owner"
    """The permission that it has, if its caller has a higher one."""
    middleware: Annotated[tuple[MiddlewareSpec, ...], Field(max_length=_MOST_MIDDLEWARE)] = ()
    """What stands around its calls, the outermost first."""

    @field_validator("allowed_modules")
    @classmethod
    def _check_modules(cls, modules: frozenset[str] | Literal["*"]) -> frozenset[str] | Literal["*"]:
        if modules == "*" or "*" in modules:
            return "*"
        if wrong := sorted(name for name in modules if not is_module_name(name)):
            raise ValueError(f"{wrong[0][:80]!r} is no name of a module")
        return modules

    @property
    def selectors(self) -> dict[str, None]:
        """Return the selectors in it, each once: those of `tools` and of its middleware."""
        lists = [self.tools or (), *(spec.tools for spec in self.middleware)]
        lists += [spec.approve_tools for spec in self.middleware if isinstance(spec, HumanInTheLoopSpec)]
        return dict.fromkeys(selector for each in lists for selector in each)

    def check_selectors(self) -> None:
        """Raise `ValueError` if a selector can select no tool. Profiles that are stored are read as they are."""
        if (fault := next(filter(None, map(never_selects, self.selectors)), None)) is not None:
            raise ValueError(fault)

    @property
    def digest(self) -> str:
        """SHA-256 of what it says, the same for equal profiles in every process."""
        document = self.model_dump(exclude={"description"})
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=sorted)
        return hashlib.sha256(text.encode()).hexdigest()

    def takes(self, tool: ToolDefinition) -> bool:
        """Return whether the profile's `tools` allow the tool."""
        return self.tools is None or selects(self.tools, tool.names, tool.tags)
