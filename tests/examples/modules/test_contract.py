"""What every example module says of itself, over real HTTP."""

import inspect
from typing import Any

from modules.claude_code.tools import ClaudeCode
from modules.code_executor.tools import CodeExecutor
from modules.deployer.tools import Deployer
from modules.file_manager.tools import FileManager
from modules.knowledge.tools import Knowledge
from modules.location.tools import Location
from modules.report_builder.tools import ReportBuilder
from modules.research.tools import Research
from support.modules.example_modules import Module
from toolfleet_registry.admission_rules import admit, closed_tools, unknown_fields
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.definition import input_schema

TOOLS: dict[str, type] = {
    "claude_code": ClaudeCode,
    "code_executor": CodeExecutor,
    "deployer": Deployer,
    "file_manager": FileManager,
    "knowledge": Knowledge,
    "location": Location,
    "report_builder": ReportBuilder,
    "research": Research,
}
PERMISSIONS = {
    "claude_code.cancel_task": "user",
    "claude_code.list_tasks": "user",
    "claude_code.run_task": "admin",
    "claude_code.task_logs": "user",
    "claude_code.task_status": "user",
    "code_executor.load_file": "user",
    "code_executor.run_python": "user",
    "code_executor.run_shell": "admin",
    "deployer.deploy": "admin",
    "deployer.deployment_logs": "user",
    "deployer.deployment_status": "user",
    "deployer.list_deployments": "user",
    "deployer.rollback": "admin",
    "deployer.stop_deployment": "user",
    "file_manager.create_document": "guest",
    "file_manager.delete_file": "user",
    "file_manager.get_file": "guest",
    "file_manager.list_files": "guest",
    "file_manager.read_document": "guest",
    "knowledge.delete": "user",
    "knowledge.get": "guest",
    "knowledge.list": "guest",
    "knowledge.save": "guest",
    "knowledge.search": "guest",
    "location.distance": "user",
    "location.forget_place": "user",
    "location.set_place": "user",
    "location.share": "user",
    "location.where_am_i": "user",
    "report_builder.build_report": "guest",
    "report_builder.quick_report": "guest",
    "research.fetch_webpage": "guest",
    "research.check_url": "guest",
    "research.search_docs": "guest",
    "research.web_search": "guest",
}
EFFECTS = {
    "claude_code.cancel_task": "idempotent",
    "claude_code.run_task": "once",
    "code_executor.run_python": "once",
    "code_executor.run_shell": "once",
    "deployer.deploy": "idempotent",
    "deployer.rollback": "once",
    "deployer.stop_deployment": "idempotent",
    "file_manager.create_document": "idempotent",
    "file_manager.delete_file": "idempotent",
    "knowledge.delete": "idempotent",
    "knowledge.save": "idempotent",
    "location.forget_place": "idempotent",
    "location.set_place": "idempotent",
}


async def test_the_fleet_admits_the_manifest(module: Module) -> None:
    """A manifest passes the fleet's own rules, with no tool closed and no field ignored."""
    document = await module.get("/manifest")
    manifest = admit(module.name, document)

    assert closed_tools(manifest) == ()
    assert unknown_fields(document) == []
    for tool in manifest.tools:
        assert tool.required_permission == PERMISSIONS[tool.name]
        assert tool.effect == EFFECTS.get(tool.name, "read")
        assert tool.description
        assert all(parameter.description for parameter in tool.parameters)


async def test_a_manifest_says_what_the_methods_take(module: Module) -> None:
    """The flat parameters, the schema and the method agree on names and on what is required."""
    manifest = admit(module.name, await module.get("/manifest"))
    for tool in manifest.tools:
        flat = {parameter.name: parameter.required for parameter in tool.parameters}
        schema = input_schema(tool)

        assert _parameters(tool) == flat
        assert {name: name in schema.get("required", ()) for name in schema["properties"]} == flat


async def test_a_module_is_healthy(module: Module) -> None:
    """`/health` answers with the module's name and counts."""
    health = await module.get("/health")
    assert (health["status"], health["module"]) == ("ok", module.name)


async def test_an_unknown_tool_is_a_failed_call(module: Module) -> None:
    """The model is told which tools there are."""
    reply = await module("make_coffee")
    assert not reply["success"]
    assert f"Unknown tool: '{module.name}.make_coffee'" in reply["error"]
    assert all(tool in reply["error"] for tool in PERMISSIONS if tool.startswith(module.name))


def _parameters(tool: ToolDefinition) -> dict[str, bool]:
    """What the method behind a tool takes, and whether it must be given."""
    module, _, method = tool.name.partition(".")
    function: Any = getattr(TOOLS[module], method)
    return {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in {"self", "user_id", "context"}
    }
