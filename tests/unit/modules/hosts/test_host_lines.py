"""What `[hosts.NAME]` says of its tools is what the host serves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolfleet_cli.hosting.hosts import options_of
from toolfleet_modules.hosts.host import Host, HostOptions
from toolfleet_modules.hosts.mcp.mcp_host import McpHost
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiHost
from toolfleet_registry.config.host_settings import FolderSpec
from toolfleet_registry.contracts import Effect, ToolAnnotations, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.settings import Settings


@dataclass(frozen=True, slots=True)
class Served:
    definition: ToolDefinition


def served(definition: ToolDefinition, lines: ToolLines, *, assumes_once: bool) -> ToolDefinition:
    host: Host[Any] = Host(HostOptions("m", lines=lines))
    host.assumes_once = assumes_once
    host.tools = {definition.name: Served(definition)}
    (found,) = host.manifest.tools
    return found


@pytest.mark.parametrize(
    ("effect", "hints", "assumes_once", "said", "came"),
    [
        ("once", {}, True, "read", "read"),  # a server that is not trusted, and POST: nobody has said it
        ("once", {}, False, "read", "once"),  # a function's own word
        ("once", {"destructiveHint": True}, True, "read", "once"),
        ("once", {"idempotentHint": False}, True, "idempotent", "once"),
        ("read", {"readOnlyHint": True}, True, "once", "once"),
        (None, {}, False, "idempotent", "idempotent"),
        ("once", {}, True, None, "once"),
    ],
)
def test_a_host_has_the_effects_of_its_line(
    effect: Effect | None, hints: dict[str, bool], assumes_once: bool, said: Effect | None, came: Effect
) -> None:
    """A line says what a tool does not declare; against its own word the careful one counts."""
    annotations = ToolAnnotations.model_validate(hints) if hints else None
    definition = ToolDefinition(name="m.t", effect=effect, annotations=annotations)
    lines = ToolLines(effects={} if said is None else {"t": said})
    assert served(definition, lines, assumes_once=assumes_once).effect == came
    assert (McpHost.assumes_once, OpenApiHost.assumes_once, Host.assumes_once) == (True, True, False)


@pytest.mark.parametrize(("own", "said"), [("guest", "user"), ("user", "guest"), ("admin", "owner")])
def test_a_host_says_who_may_use_its_tools(own: str, said: Any) -> None:
    """Its line counts, whether that is more or less than the tools ask for."""
    definition = ToolDefinition(name="m.t", required_permission=own)
    assert served(definition, ToolLines(permission=said), assumes_once=True).required_permission == said


@pytest.mark.parametrize(
    ("lines", "unmet"),
    [
        ({"effects": {"t": "read"}, "approval": ("m.t",)}, None),
        ({"effects": {"before": "read"}, "approval": ("m.before",)}, None),
        ({"approval": True}, None),
        ({"concurrency": {"u": {"key": "day"}}}, "u"),
        ({"effects": {"u": "read"}, "approval": ("pay", "t")}, "pay, u"),
    ],
)
def test_a_name_in_a_line_that_is_no_tools_is_a_warning(
    lines: dict[str, Any], unmet: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In the host's log: calls would be let through that its operator wants approved."""
    definition = ToolDefinition(name="m.t", former_names=["m.before"])
    served(definition, ToolLines.model_validate(lines), assumes_once=False)
    assert [record.getMessage() for record in caplog.records] == (
        [] if unmet is None else [f"m has no tools that [hosts.m] names: {unmet}."]
    )


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"approval": ["pay*"]}, "names no tool: each is named whole"),
        ({"approval": ["*"]}, "names no tool: each is named whole"),
        ({"effects": {"m.*": "read"}}, "names no tool: each is named whole"),
        ({"approvers": {"users": ["carol"]}}, "approvers are for tools that `approval` names"),
    ],
)
def test_a_line_that_would_ask_nobody_is_refused(wrong: dict[str, Any], reason: str) -> None:
    """A pattern selects nothing, and approvers alone name no tool: calls would be let through that somebody wants approved."""
    for found in ({"hosts": {"m": {"folder": "m", **wrong}}}, {"module": {"m": wrong}}):
        with pytest.raises(ValueError, match=reason):
            Settings.model_validate(found)


def test_lines_of_settings_come_to_the_host(tmp_path: Path) -> None:
    """As `[hosts.NAME]` has them; an unknown word is refused."""
    settings = Settings.model_validate(
        {"hosts": {"m": {"folder": str(tmp_path), "permission": "admin", "effects": {"t": "read"}}}}
    )
    spec = settings.hosts["m"]
    assert isinstance(spec, FolderSpec)
    lines = options_of(settings, spec, "m", tmp_path, beside=tmp_path).lines
    assert (lines.permission, lines.effects) == ("admin", {"t": "read"})
    refused: tuple[dict[str, object], ...] = (
        {"permission": "usr"},
        {"effects": {"t": "often"}},
        {"effect": {}},
        {"concurrency": {"t": {"key": "day", "limit": 0}}},
        {"concurrency": {"t": {"key": "day", "colour": "red"}}},
    )
    for wrong in refused:
        with pytest.raises(ValueError, match=r"Input|permitted"):
            Settings.model_validate({"hosts": {"m": {"folder": "m", **wrong}}})
        with pytest.raises(ValueError, match=r"Input|permitted"):
            Settings.model_validate({"module": {"m": wrong}})
