"""Names, numbers and fields that the documents give to the letter, where no other test says them as they stand there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from toolfleet import Caller, GateDecision, ToolCall, ToolDefinition, ToolResult
from toolfleet.stores import ToolRegistration, ToolRegistrySnapshot, ToolSpec
from toolfleet.tags import TagRegistry, TagResult, ToolContext, ToolDef, ToolNotFound, parse_response
from toolfleet_modules.hosts.folder.generation import FolderOptions
from toolfleet_registry.contracts import ModuleManifest, ToolParameter
from toolfleet_registry.settings import Settings

ROOT = Path(__file__).parents[2]


def test_times_are_those_of_the_documents() -> None:
    """10 s for a manifest, which is kept for an hour; 30 s for a call, 120 s for one of a slow module."""
    settings = Settings()

    assert (settings.discovery_timeout_seconds, settings.manifest_ttl_seconds) == (10, 3600)
    assert (settings.default_timeout, settings.tool_execution_timeout) == (30, 120)


def test_modules_have_their_lane_and_guests_their_modules() -> None:
    """By name, as both documents list them; other modules are fast, and no guest's."""
    settings = Settings()

    assert settings.slow_modules == {"myfitnesspal", "garmin", "renpho_biometrics", "claude_code", "deployer"}
    assert settings.default_guest_modules == {"research", "file_manager", "code_executor", "knowledge"}


FIELDS: list[tuple[type[BaseModel], set[str]]] = [
    (ModuleManifest, {"module_name", "description", "tools"}),
    (ToolDefinition, {"name", "description", "parameters", "required_permission"}),
    (ToolParameter, {"name", "type", "description", "required", "enum"}),
    (ToolCall, {"tool_name", "arguments", "user_id"}),
    (ToolResult, {"tool_name", "success", "result", "error"}),
    (ToolSpec, {"tool_name", "version", "description", "input_schema", "output_schema", "tags"}),
    (ToolRegistration, {"spec", "enabled", "created_at"}),
    (ToolRegistrySnapshot, {"tools"}),
]


@pytest.mark.parametrize(("model", "fields"), FIELDS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_message_has_the_fields_of_its_document(model: type[BaseModel], fields: set[str]) -> None:
    """Under their names; ours are beside them, and none of those has to be given."""
    assert fields <= model.model_fields.keys()
    assert not any(field.is_required() for name, field in model.model_fields.items() if name not in fields)


SPEC: dict[str, Any] = {"tool_name": "owls.find", "input_schema": {}, "output_schema": {}}


def test_what_a_registry_holds_is_frozen_and_takes_no_other_field() -> None:
    """A specification, its registration and a snapshot; each is the same after a way through JSON."""
    spec = ToolSpec(**SPEC)
    registration = ToolRegistration(spec=spec)
    for value in (spec, registration, ToolRegistrySnapshot(tools=[registration])):
        with pytest.raises(ValidationError):
            type(value).model_validate({**value.model_dump(), "colour": "grey"})
        with pytest.raises(ValidationError):
            setattr(value, next(iter(type(value).model_fields)), None)
        assert type(value).model_validate_json(value.model_dump_json()) == value


def test_a_caller_is_kept_to_a_personas_modules() -> None:
    """A JSON array of names, as a persona has it."""
    assert Caller.model_validate_json('{"allowed_modules": ["research"]}').allowed_modules == frozenset({"research"})


TAG: dict[str, Any] = {"name": "research", "description": "…", "tag_prefix": "RESEARCH", "cost": "cheap"}


def test_a_tags_definition_has_twelve_fields_with_their_defaults() -> None:
    """What is not given is one group of text, no limits, and a tag that nobody is shown."""
    tool = ToolDef(**TAG, handler=handler, requires_gate=False)
    given = {*TAG, "handler", "requires_gate"}

    assert {name: getattr(tool, name) for name in TWELVE - given} == {
        "arg_pattern": "(.+)",
        "arg_groups": ["raw_arg"],
        "prompt_example": "",
        "strip_from_display": True,
        "cooldown_seconds": 0,
        "daily_limit": 0,
    }


TWELVE = {
    *("name", "description", "tag_prefix", "arg_pattern", "arg_groups", "prompt_example"),
    *("handler", "cost", "requires_gate", "strip_from_display", "cooldown_seconds", "daily_limit"),
}


def test_a_context_and_a_result_are_written_by_position() -> None:
    """In the order of the document."""
    context = ToolContext("owls", "Where?", "@ada", 7, "Barns.", 0.5)
    result = TagResult(True, "Found.", ["searched"], {"posts": 3})

    assert (context.raw_arg, context.user_message, context.user, context.chat_id) == ("owls", "Where?", "@ada", 7)
    assert (context.kb_context, context.confidence) == ("Barns.", 0.5)
    assert (result.success, result.message, result.side_effects) == (True, "Found.", ["searched"])
    assert result.audit == {"posts": 3}


def test_a_registry_of_tags_refuses_a_name_twice() -> None:
    """It finds a tool by its name, and lists all in the order of their names."""
    tags = TagRegistry()
    for name in ("research", "claim"):
        tags.register(tag(name, "[x]"))
    with pytest.raises(ValueError, match="There is a tool named 'research' already"):
        tags.register(tag("research", "[x]"))

    assert [tool.name for tool in tags.all_tools()] == ["claim", "research"]
    assert tags.get("nowhere") is None


async def test_a_handler_takes_one_context_under_any_name_and_may_fail() -> None:
    """A failure is a failed result, which ends nothing."""

    async def fail(anything: ToolContext) -> TagResult:
        raise ValueError(anything.raw_arg)

    tags = TagRegistry()
    tags.register(ToolDef(**TAG, handler=fail, requires_gate=False))
    result = await tags.execute("research", ToolContext("owls", "", "@ada", 7))

    assert (result.success, result.audit["tool"]) == (False, "research")
    with pytest.raises(ToolNotFound):
        await tags.execute("nowhere", ToolContext("owls", "", "@ada", 7))


async def test_a_gate_is_asked_by_a_registry_of_its_own_and_one_that_fails_lets_calls_run() -> None:
    """It is asked only about tools that require it, is given the definition, and blocks with its reason."""
    asked = list[str]()

    class Gate:
        answer: GateDecision | None = GateDecision(False, "Not now.")

        async def check(self, tool: Any, ctx: ToolContext) -> GateDecision:
            asked.append(f"{tool.name} {ctx.raw_arg}")
            if self.answer is None:
                raise ValueError
            return self.answer

    gate = Gate()
    tags = TagRegistry(gate=gate)
    for name, gated in (("research", True), ("claim", False)):
        fields: dict[str, Any] = {**TAG, "name": name, "tag_prefix": name.upper()}
        tags.register(ToolDef(**fields, handler=handler, requires_gate=gated))
    context = ToolContext("owls", "", "@ada", 7)
    blocked, free = await tags.execute("research", context), await tags.execute("claim", context)
    gate.answer = None
    late = await tags.execute("research", context)

    assert (blocked.success, blocked.message, free.success, late.success) == (False, "Not now.", True, True)
    assert asked == ["research owls"] * 2


def test_no_module_has_an_address_by_default() -> None:
    """A name that nobody has put there would be looked for in vain, or found where it should not be."""
    assert Settings().module_services == {}


def test_changes_of_files_are_gathered_for_half_a_second() -> None:
    """At most, so that one save is one reload."""
    assert FolderOptions("owls", None).debounce_ms == 500


MEASURED = (ROOT / "benchmarks" / "results" / "folders.md").read_text()


def test_a_scan_of_200_lines_is_measured() -> None:
    """It takes less than a millisecond, as `make bench-folders` has found."""
    measured = re.search(r"scan of 20\d lines, median \| ([\d.]+) ms", MEASURED)

    assert measured is not None
    assert float(measured[1]) < 1


def test_a_folder_of_1000_files_is_measured() -> None:
    """All of them are loaded within seconds."""
    measured = re.search(r"1,000 files loaded \| ([\d.]+) s", MEASURED)

    assert measured is not None
    assert float(measured[1]) < 5


async def handler(ctx: ToolContext) -> TagResult:
    return TagResult(True, ctx.raw_arg)


def tag(name: str, example: str, **fields: Any) -> ToolDef:
    return ToolDef(
        name=name,
        description=f"What {name} does.",
        tag_prefix=name.upper(),
        prompt_example=f"{name.upper()}: {example}",
        handler=handler,
        cost="free",
        requires_gate=False,
        **fields,
    )


async def test_the_four_tools_of_the_document_are_told_found_and_executed() -> None:
    """In a registry without a fleet: research has three calls a day, and a learning its two groups."""
    tags = TagRegistry()
    learning = {"arg_pattern": r"(factual|communication|structured_data)\s+(.+)", "arg_groups": ["category", "content"]}
    for tool in (
        tag("research", "[search query]", daily_limit=3),
        tag("source", "[description]"),
        tag("claim", "[specific assertion]"),
        tag("learning", "[category] [what was learned]", **learning),
    ):
        tags.register(tool)
    text = "Sure.\nRESEARCH: owls\nSOURCE: a book\nCLAIM: they fly\nLEARNING: factual they are birds\n"
    context = ToolContext(raw_arg="", user="@ada", user_message="owls?", chat_id=7, kb_context=None, confidence=0.5)

    parsed = parse_response(text, tags, context=context)
    results = [await tags.execute(call.name, call.context) for call in parsed.tool_calls]

    assert all(f"{name}: [" in tags.prompt_block() for name in ("RESEARCH", "SOURCE", "CLAIM", "LEARNING"))
    assert [call.name for call in parsed.tool_calls] == ["research", "source", "claim", "learning"]
    assert parsed.display_text == "Sure."
    assert [result.message for result in results] == ["owls", "a book", "they fly", "factual they are birds"]
    assert all({"duration_ms", "tool", "ts"} <= result.audit.keys() for result in results)


def test_it_stands_on_what_it_was_to_stand_on() -> None:
    """Celery, kombu, Redis, pydantic and httpx for everybody, Flower for workers, pytest for tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {name: {re.split(r"[\[<>=;, ]", one)[0] for one in extras[name]} for name in ("worker", "dev")}

    assert {re.split(r"[\[<>=;, ]", one)[0] for one in project["dependencies"]} >= {
        "celery",
        "kombu",
        "redis",
        "pydantic",
        "httpx",
    }
    assert "flower" in asked["worker"]
    assert "pytest" in asked["dev"]
