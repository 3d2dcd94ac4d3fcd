"""Tools that somebody really offers: the example modules', and those of three MCP servers, asked over stdio."""

import sys
from collections.abc import Mapping
from typing import Any

from mcp import Client, StdioServerParameters

from modules.claude_code.manifest import module_for as claude_code
from modules.claude_code.settings import ClaudeCodeSettings
from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for as code_executor
from modules.deployer.manifest import module_for as deployer
from modules.deployer.settings import DeployerSettings
from modules.file_manager.manifest import module_for as file_manager
from modules.files import FileSettings, open_pipeline
from modules.knowledge.manifest import module_for as knowledge
from modules.knowledge.settings import KnowledgeSettings
from modules.location.manifest import module_for as location
from modules.location.settings import LocationSettings
from modules.report_builder.manifest import module_for as report_builder
from modules.report_builder.tools import ReportSettings
from modules.research.manifest import module_for as research
from modules.research.settings import ResearchSettings
from toolfleet_registry.contracts import ToolDefinition

SERVERS = ("time", "fetch", "git")
DEADLINE_SECONDS = 60


def example_tools() -> list[ToolDefinition]:
    """What the modules in `examples/` offer."""
    files = open_pipeline()
    modules = (
        claude_code(ClaudeCodeSettings()),
        code_executor(Limits(), files),
        deployer(DeployerSettings()),
        file_manager(files),
        knowledge(KnowledgeSettings(), FileSettings()),
        location(LocationSettings(), FileSettings()),
        report_builder(ReportSettings(), files),
        research(ResearchSettings()),
    )
    return [tool for module in modules for tool in module.manifest.tools]


async def server_tools(server: str) -> list[ToolDefinition]:
    """What `mcp-server-<server>` answers to `tools/list`, as a module's manifest would have it."""
    parameters = StdioServerParameters(command=sys.executable, args=["-m", f"mcp_server_{server}"])
    async with Client(parameters, read_timeout_seconds=DEADLINE_SECONDS) as client:
        listed = await client.list_tools()
    return [_definition(server, tool.model_dump(by_alias=True, exclude_none=True)) for tool in listed.tools]


def sample_arguments(schema: Mapping[str, Any], *, all_of_them: bool) -> dict[str, Any]:
    """Arguments that fit a plain schema: the required ones, or all."""
    return {
        name: _sample(inner)
        for name, inner in schema["properties"].items()
        if all_of_them or name in schema.get("required", [])
    }


def _definition(server: str, tool: Mapping[str, Any]) -> ToolDefinition:
    return ToolDefinition(
        name=f"{server}.{tool['name']}",
        description=tool.get("description", ""),
        input_schema=tool["inputSchema"],
        output_schema=tool.get("outputSchema"),
        annotations=tool.get("annotations"),
    )


def _sample(schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"][0] if isinstance(schema["type"], list) else schema["type"]
    if kind == "array":
        return [_sample(schema["items"])]
    if kind == "object":
        return {name: _sample(inner) for name, inner in schema.get("properties", {}).items()}
    strings = {"uri": "https://example.com/", "date-time": "2025-01-01T00:00:00Z"}
    samples = {"integer": max(schema.get("minimum", 1), 1), "number": 1.5, "boolean": True, "null": None}
    return samples[kind] if kind in samples else strings.get(schema.get("format", ""), "owls")
