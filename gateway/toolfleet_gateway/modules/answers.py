"""Describes what is answered about modules."""

from pydantic import BaseModel, ConfigDict

from toolfleet_gateway.tools.answers import ShownLoadError, ShownTool


class ShownModule(BaseModel):
    """What is known of a module. What is wrong with it is shown to viewers only."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    module: str
    """Its name."""
    ok: bool
    """Whether the last look at it found a good manifest."""
    tools: int
    """How many tools it has; to others than viewers, how many of them they may use."""
    age_seconds: float | None = None
    """The age of its last good manifest, if it has one."""
    is_stale: bool = False
    """Whether that one is too old."""
    error: str | None = None
    """Why the last look failed."""
    closed_tools: list[str] | None = None
    """The tools that nobody can use, for what they say of themselves."""
    disabled: int | None = None
    """How many tools an operator has switched off."""
    withheld: int | None = None
    """How many tools no operator has approved, of a pinned module."""
    drifted: int | None = None
    """How many tools have other content than was registered under the same version."""
    load_errors: list[ShownLoadError] | None = None
    """What is not served as it stands."""


class ModuleList(BaseModel):
    """The modules that a caller reaches."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    modules: list[ShownModule]
    """By name."""
    count: int
    """How many there are."""


class ModuleWithTools(ShownModule):
    """A module, and what it offers to the caller."""

    offers: list[ShownTool]
    """The tools that the caller may use, by name."""


class ModuleToolsList(BaseModel):
    """The modules that a caller reaches, each with its tools."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    modules: list[ModuleWithTools]
    """By name."""
    count: int
    """How many there are."""
