"""Functions of our own as tools: what they offer, and what of the setting is wrong."""

import asyncio
import importlib
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from support.documents import programs
from support.local_tools.tag_tools import research_tag
from support.there import there
from toolfleet_modules.sdk.module import Module
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.local import local_tools
from toolfleet_registry.local.local_function import LocalFunction, local_tool
from toolfleet_registry.local.local_tools import LocalTools, load_local_tools, probe_local
from toolfleet_registry.manifests.discovery import ManifestFailure
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import Tags, ToolContext


def settings_of(path: str | None, **values: Any) -> Settings:
    return Settings(local_tools=path, **values)


def loaded(path: str) -> LocalTools:
    tools = load_local_tools(settings_of(path))
    assert tools.error is None
    return tools


def offered(path: str) -> list[ToolDefinition]:
    manifest = there(loaded(path).manifest)
    return manifest.tools


def test_the_functions_of_the_setting_are_the_module_local() -> None:
    """By name; a tag whose handler is a module's tool is left to that module."""
    manifest = loaded("support.local_tools.tag_tools:tools").manifest

    assert manifest is not None
    assert manifest.module_name == "local"
    names = [tool.name for tool in manifest.tools]
    assert names == ["local.explode", "local.learning", "local.nap", "local.refuse", "local.research"]


def test_a_tags_terms_are_those_of_its_tool() -> None:
    """Description, cost, gate and limits; without limits it has none."""
    tools = {tool.name: tool for tool in offered("support.local_tools.tag_tools:tools")}

    research, learning = tools["local.research"], tools["local.learning"]
    assert (research.description, research.cost, research.daily_limit) == ("What research does.", "cheap", 3)
    assert (learning.cooldown_seconds, learning.daily_limit, learning.requires_gate) == (None, None, False)
    assert research.input_schema is not None
    assert research.input_schema["required"] == ["raw_arg"]
    assert list(research.input_schema["properties"]) == ["raw_arg"]  # the rest is for the agent to say
    assert learning.input_schema is not None
    assert list(learning.input_schema["properties"]) == learning.input_schema["required"] == ["category", "content"]
    assert (research.takes_context, learning.takes_context) == (True, False)


def test_a_functions_parameters_are_its_schema() -> None:
    """With what `local_tool` was told, and the docstring as its description, as in a module of the SDK."""
    tools = {tool.name: tool for tool in offered("support.local_tools.tag_tools:tools")}

    nap = tools["local.nap"]
    assert (nap.description, nap.effect, nap.timeout_seconds) == ("Sleeps for so long.", "read", 2)
    assert nap.input_schema is not None
    assert nap.input_schema["required"] == ["seconds"]
    assert nap.input_schema["properties"]["seconds"]["type"] == "number"
    assert nap.input_schema["properties"]["mood"]["enum"] == ["deep", "light"]


def test_the_readmes_functions_are_tools(elsewhere: Path) -> None:
    """As they stand there, with what their decorator says of them."""
    program = programs("docs/guides/tool-folders.md")["owl-tools"]
    (elsewhere / "owl_tools.py").write_text(program)

    counting, tool = offered("owl_tools:tools")
    assert (counting.name, counting.description) == ("local.count_trees", "Count trees, one after the other.")
    assert (tool.name, tool.description) == ("local.find_owls", "Find owls in a wood.")
    assert (tool.required_permission, tool.effect, tool.timeout_seconds) == ("guest", "read", 5)
    assert tool.input_schema is not None
    assert tool.input_schema["properties"]["wood"] == {"type": "string", "description": "Its name."}


def test_without_the_setting_there_are_no_local_tools() -> None:
    """And nothing is imported."""
    assert load_local_tools(settings_of(None)).functions == load_local_tools(settings_of("")).functions == {}
    assert settings_of(None, module_services={"owls": "http://owls"}).modules == {"owls"}
    assert settings_of("a.b:c", module_services={"owls": "http://owls"}).modules == {"owls", "local"}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("support.nowhere:tools", "cannot be imported: ModuleNotFoundError"),
        ("support.local_tools.tag_tools:nothing", "'support.local_tools.tag_tools' has no 'nothing'"),
        ("support.local_tools.tag_tools:no_list", "is no list of tools, but a str"),
        ("support.local_tools.tag_tools:twice", "has two tools named 'local.research'"),
        ("support.local_tools.tag_tools:with_yielding", "Tool 'yielding': its handler 'yielding' yields"),
        (
            "support.local_tools.tag_tools:with_missing",
            "the handler of tool 'missing', 'support.local_tools.tag_tools:nowhere', cannot be found",
        ),
        (
            "support.local_tools.tag_tools:with_other_groups",
            "its handler wants 'category', which is none of the tag's groups",
        ),
    ],
)
def test_tools_that_cannot_be_had_are_one_clear_error(path: str, reason: str) -> None:
    """That begins with the setting's name, and is raised nowhere: the worker has others to serve."""
    error = there(load_local_tools(settings_of(path)).error)
    assert error.startswith("TOOLFLEET_LOCAL_TOOLS: ")
    assert reason in error


@pytest.mark.parametrize(
    "path", ["support.local_tools.tag_tools", "support.local_tools.tag_tools:", "../tag_tools:tools"]
)
def test_a_setting_that_names_nothing_is_refused(path: str) -> None:
    """No worker could import that, now or later."""
    with pytest.raises(SettingsError, match=r"^TOOLFLEET_LOCAL_TOOLS: .* must have the form 'package.module:name'"):
        load_local_tools(settings_of(path))


PROGRAMS = {
    "one, two = 1, 2\n1/0": ("cannot be imported: ZeroDivisionError", 2),
    "import sys\n\nsys.exit(3)": ("cannot be imported: SystemExit", 3),
    "raise KeyboardInterrupt": ("cannot be imported: KeyboardInterrupt", 1),
    "tools = [": ("cannot be imported: SyntaxError: '[' was never closed", 1),
    "tools = [print]": ("'args' of 'print' takes no single argument by name", None),
    "tools = [int]": ("its handler 'int' is no function", None),
    "import json\njson.loads('{secret')": ("cannot be imported: JSONDecodeError", 2),
    "import owls_that_nobody_has": ("ModuleNotFoundError: No module named 'owls_that_nobody_has'", 1),
    "raise RuntimeError('secret')": ("cannot be imported: RuntimeError", 1),
    "def tools(): ...": ("is no list of tools, but a function", None),
    "class Tools(list):\n    def __iter__(self): raise OSError\ntools = Tools()": ("cannot be read: OSError", None),
    "async def twice(): ...\n\ntools = [twice, twice]": ("has two tools named 'local.twice'", 1),
    "async def owl(*words): ...\ntools = [owl]": ("'words' of 'owl' takes no single argument by name", 1),
    "x = 1\nasync def owl(one: 'Nothing'): ...\ntools = [owl]": ("cannot be described", 2),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_cannot_be_imported_is_told_with_its_file_and_line(
    program: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises, without its values; it is looked for in the working directory at last."""
    name = f"broken_{abs(hash(program))}"
    file = elsewhere / f"{name}.py"
    file.write_text(program)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    error = load_local_tools(settings_of(f"{name}:tools")).error
    reason, line = PROGRAMS[program]
    assert error is not None
    assert error.startswith("TOOLFLEET_LOCAL_TOOLS: ")
    assert reason in error
    assert "secret" not in error
    if line is not None:
        assert f"{file}, line {line})" in error


def test_an_error_in_a_module_that_is_imported_by_another_is_told_where_it_is(elsewhere: Path) -> None:
    """In the program's own line: where a library fails over it says little."""
    (elsewhere / "owl_parts.py").write_text("import json\n\nfeathers = json.loads('')\n")
    (elsewhere / "owls_of_parts.py").write_text("import owl_parts\n\ntools = []\n")

    error = there(load_local_tools(settings_of("owls_of_parts:tools")).error)
    assert error.endswith(f"cannot be imported: JSONDecodeError ({elsewhere / 'owl_parts.py'}, line 3)")


async def test_one_broken_tool_takes_no_other_with_it(elsewhere: Path) -> None:
    """The others are offered, and the look says what is missing; once it is there, it is there at the next look."""
    tag = "ToolDef(name='b', description='', tag_prefix='B', handler='owl_late:b', cost='free', requires_gate=False)"
    program = f"from toolfleet.tags import ToolDef\n\nasync def a(): ...\n\ntools = [a, {tag}]\n"
    (elsewhere / "owl_half.py").write_text(program)
    (elsewhere / "owl_late.py").write_text("async def b(context): ...\n1/0\n")

    look = (await probe_local(settings_of("owl_half:tools")))["local"]
    assert isinstance(look, ManifestFailure)
    assert look.offered is not None
    assert [tool.name for tool in look.offered.tools] == ["local.a"]
    assert f"ZeroDivisionError ({elsewhere / 'owl_late.py'}, line 2)" in look.error

    (elsewhere / "owl_late.py").write_text("async def b(context): ...\n")
    look = (await probe_local(settings_of("owl_half:tools")))["local"]
    assert isinstance(look, ModuleManifest)
    assert [tool.name for tool in look.tools] == ["local.a", "local.b"]


def test_a_module_at_an_address_cannot_be_called_local() -> None:
    """Beside local tools: nobody could tell them apart."""
    with pytest.raises(SettingsError, match="needs another name"):
        load_local_tools(settings_of("support.local_tools.tag_tools:tools", module_services={"local": "http://owls"}))
    assert load_local_tools(settings_of(None, module_services={"local": "http://owls"})).functions == {}


async def test_a_process_that_cannot_import_them_is_told_so_and_goes_on() -> None:
    """What another worker has stored holds."""
    looks = await probe_local(settings_of("support.nowhere:tools"))
    assert isinstance(looks["local"], ManifestFailure)
    assert "cannot be imported" in looks["local"].error

    assert isinstance((await probe_local(settings_of("support.local_tools.tag_tools:tools")))["local"], ModuleManifest)
    assert await probe_local(settings_of(None)) == {}


LATE = "TOOLFLEET_LOCAL_TOOLS: not imported within 0.1 s, and still at it."


async def test_an_import_that_hangs_takes_one_thread_and_no_executor(elsewhere: Path) -> None:
    """However often modules are asked what they offer: everybody waits for the same one, each for its own time."""
    (elsewhere / "hanging_owls.py").write_text("import threading\nowls = threading.Event()\nowls.wait()\ntools = []\n")
    before = threading.enumerate()
    settings = settings_of("hanging_owls:tools", discovery_timeout_seconds=0.1)
    for _ in range(3):
        looks = await asyncio.gather(*(probe_local(settings) for _ in range(20)))
        assert {str(look["local"]) for look in looks} == {str(ManifestFailure(LATE))}
    (importing,) = [each for each in threading.enumerate() if each not in before]
    assert importing.daemon  # Python ends without it, as without no thread of an executor
    assert await asyncio.to_thread(lambda: "free") == "free"

    sys.modules["hanging_owls"].owls.set()
    patient = settings_of("hanging_owls:tools", discovery_timeout_seconds=10)
    assert isinstance((await probe_local(patient))["local"], ModuleManifest)


async def test_an_import_that_failed_is_tried_again(elsewhere: Path) -> None:
    """What was missing may be there by now; what has succeeded is not imported again."""
    settings = settings_of("late_owls:tools")
    looks = await probe_local(settings)
    assert isinstance(looks["local"], ManifestFailure)

    for code in ("tools = []\n", "what = is this\n"):  # what comes after a success is for the next start
        (elsewhere / "late_owls.py").write_text(code)
        importlib.invalidate_caches()
        looks = await probe_local(settings)
        assert isinstance(looks["local"], ModuleManifest)


def test_a_worker_needs_no_engine_for_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for no tags; an agent that does is told what to install."""
    local_tools._attempts.clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    assert "local.research" in loaded("support.local_tools.tag_tools:tools").functions
    with pytest.raises(ValueError, match=r"install 'toolfleet\[tags\]'"):
        Tags().register(research_tag)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "'seconds': Field required"),
        ({"seconds": "soon"}, "'seconds': Input should be a valid number"),
        ({"seconds": 1, "mood": "awake"}, "'mood': Input should be 'deep' or 'light'"),
        ({"seconds": 1, "colour": "brown"}, "'colour': Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_named_and_not_repeated(arguments: dict[str, Any], reason: str) -> None:
    """Before the function is called."""
    nap = loaded("support.local_tools.tag_tools:tools").functions["local.nap"]

    with pytest.raises(ValueError, match=r"^'") as caught:
        nap.bind(arguments)
    assert reason in str(caught.value)
    assert "soon" not in str(caught.value)


def test_who_asks_is_whoever_the_call_says() -> None:
    """No argument can contradict it: a model may have written them."""
    research = loaded("support.local_tools.tag_tools:tools").functions["local.research"]
    context = research.bind({"raw_arg": "owls"}, "@ada", ToolContext("", user="@eve"))["context"]
    assert (context.user, context.raw_arg) == ("@ada", "owls")


def test_a_function_that_wants_a_tags_groups_gets_them() -> None:
    """One that is missing is a fault of the arguments."""
    learning = loaded("support.local_tools.tag_tools:tools").functions["local.learning"]
    groups = {"category": "factual", "content": "owls"}

    assert learning.bind(groups) == groups
    with pytest.raises(ValueError, match="'category' is missing"):
        learning.bind({"content": "owls"})
    with pytest.raises(ValueError, match="'content': Input should be a valid string"):
        learning.bind({**groups, "content": 1})


async def untyped(one, *, two=2, context) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001 - what is tested
    """Takes anything, and who asks."""


async def optional(note: str = "none", context: ToolContext | None = None) -> None:
    """Has defaults."""


async def starred(*words: str) -> None:
    """Takes no argument by name."""


async def strange(loop: asyncio.AbstractEventLoop) -> None:
    """Takes what no JSON can be."""


def test_a_function_may_want_its_context_beside_its_arguments() -> None:
    """Which is no argument of a caller's."""
    function = LocalFunction.of(untyped)

    assert function.definition.input_schema is not None
    assert function.definition.input_schema["properties"].keys() == {"one", "two"}
    own = function.bind({"one": [1]}, "@ada")
    assert own == {"one": [1], "context": ToolContext(raw_arg="", user="@ada")}
    assert LocalFunction.of(optional).bind({}) == {"context": ToolContext(raw_arg="")}


@pytest.mark.parametrize("function", [starred, strange])
def test_a_function_whose_parameters_nobody_can_fill_is_refused(function: Any) -> None:
    """When it is loaded, not when it is called."""
    with pytest.raises(ValueError, match=function.__name__):
        LocalFunction.of(function)


async def described(day: int, user_id: str, *, mood: Literal["deep", "light"] = "light") -> None:  # noqa: D417 - the user is no argument
    """Tells of owls.

    As one sees them
    in winter.

    Args:
        day: The day of the month.
        mood: How deep they sleep.

    """


def test_a_function_makes_the_same_tool_here_and_in_a_module() -> None:
    """One reading of a function: what a model sees of it does not depend on where it runs."""
    local = LocalFunction.of(described).definition
    module = Module("local")
    module.add(described)
    (served,) = module.manifest.tools

    assert (local.input_schema, local.description) == (served.input_schema, served.description)
    assert local.input_schema is not None
    assert local.input_schema["properties"]["day"] == {"type": "integer", "description": "The day of the month."}
    assert "title" not in str(local.input_schema)
    assert "user_id" not in local.input_schema["properties"]


def test_a_function_gets_the_calls_user() -> None:
    """Whom no argument can contradict; without one, one that needs it is not called."""
    function = LocalFunction.of(described)

    assert function.bind({"day": 1}, "ada") == {"day": 1, "user_id": "ada"}
    with pytest.raises(ValueError, match="for which user"):
        function.bind({"day": 1})
    with pytest.raises(ValueError, match="'user_id': Extra inputs"):
        function.bind({"day": 1, "user_id": "eve"}, "ada")


def test_a_function_asks_for_a_user_unless_it_says_otherwise() -> None:
    """A tag's for a guest: whoever can write to an agent can call its tags."""
    assert LocalFunction.of(described).definition.required_permission == "user"
    for said in ({"permission": "guest"}, {"required_permission": "guest"}):
        marked = local_tool(**said)(_plain())  # type: ignore[call-overload] # one word or the other
        assert LocalFunction.of(marked).definition.required_permission == "guest"
    assert (
        loaded("support.local_tools.tag_tools:tools").functions["local.research"].definition.required_permission
        == "guest"
    )


def test_what_a_function_leaves_open_is_believed() -> None:
    """Functions that were tools before go on as such: with any default, and a docstring that has fallen behind."""

    async def sloppy(text: str = None, count: int = Field(3, ge=1)) -> None:  # type: ignore[assignment] # noqa: D417, RUF013 - what is tested
        """Counts.

        Args:
            number: Is called something else now.

        """

    schema = there(LocalFunction.of(sloppy).definition.input_schema)
    assert schema["properties"] == {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 1, "default": 3},
    }
    assert LocalFunction.of(sloppy).bind({}) == {}


def test_facts_that_a_tool_does_not_have_are_refused() -> None:
    """At once, where they are written."""
    with pytest.raises(ValueError, match="permission must be guest, user, admin or owner, not 'root'"):
        local_tool(permission="root")  # type: ignore[call-overload] # what somebody may write
    with pytest.raises(ValueError, match="has no code_digest, effects"):
        local_tool(effects="read", code_digest="sha256:")
    with pytest.raises(ValueError, match="is wrong at effect"):
        LocalFunction.of(local_tool(effect="perhaps")(_plain()))
    with pytest.raises(ValueError, match="its concurrency_key names 'day', which is no argument of it"):
        LocalFunction.of(local_tool(concurrency_key="day")(_plain()))


def _plain() -> Any:
    async def plain() -> None: ...

    return plain
