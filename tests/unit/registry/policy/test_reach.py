"""Which modules a caller reaches who names none, and that whoever is left out is told so once."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from toolfleet_registry.catalog import catalog
from toolfleet_registry.catalog.catalog import ToolSet, say_hidden
from toolfleet_registry.contracts import Caller, ModuleManifest, ToolDefinition
from toolfleet_registry.manifests.manifest_cache import seen_tools
from toolfleet_registry.permissions import Modules
from toolfleet_registry.policy.call_faults import as_sent, modules_of, newly_reached, resolved

GUESTS = frozenset({"research"})
OWLS = frozenset({"owls"})


def tools_of(*names: str) -> list[ToolDefinition]:
    return [ToolDefinition(name=name) for name in names]


def toolset(*tools: ToolDefinition) -> ToolSet:
    return ToolSet(tool for each in tools for tool in seen_tools(_manifest(each), {}))


def _manifest(tool: ToolDefinition) -> ModuleManifest:
    return ModuleManifest(module_name=tool.name.partition(".")[0], tools=[tool])


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_said", set[str])


@pytest.mark.parametrize(
    ("caller", "modules"),
    [
        (Caller(), GUESTS),
        (Caller(permission="user"), "*"),
        (Caller(permission="owner"), "*"),
        (Caller(allowed_modules=OWLS), OWLS),  # who names some reaches those, whoever it is
        (Caller(allowed_modules="*"), "*"),
        (Caller(permission="owner", allowed_modules=frozenset()), frozenset()),
        (Caller().model_copy(update={"permission": "emperor"}), GUESTS),  # an unknown level is a guest
    ],
)
def test_a_caller_reaches_what_its_permission_allows(caller: Caller, modules: Modules) -> None:
    """Without names a guest reaches those of the settings, everybody else all; so it is sent, and read."""
    assert modules_of(caller, GUESTS) == modules
    sent = resolved(caller, GUESTS)
    assert sent.allowed_modules == modules
    assert as_sent(sent, frozenset()) == sent
    assert (sent.user_id, sent.permission) == (caller.user_id, caller.permission)


def test_a_message_that_names_no_modules_is_read_as_it_was_meant() -> None:
    """An earlier agent's: by its rule everybody reached what a guest reaches."""
    assert as_sent(Caller(permission="owner"), GUESTS).allowed_modules == GUESTS


def test_what_is_reached_now_and_was_not_can_be_listed() -> None:
    """The tools outside of the guests' modules."""
    tools = tools_of("owls.greet", "research.search", "zoo.feed")
    assert [tool.name for tool in newly_reached(tools, GUESTS)] == ["owls.greet", "zoo.feed"]


@pytest.mark.parametrize(
    ("caller", "level", "reason"),
    [
        (Caller(), "warning", "TOOLFLEET_DEFAULT_GUEST_MODULES"),
        (Caller(permission="user", allowed_modules=GUESTS), "info", "allowed_modules"),
    ],
)
def test_tools_that_are_hidden_by_their_modules_are_counted_once(caller: Caller, level: str, reason: str) -> None:
    """One line says how many and why, and of what modules they are."""
    tools = toolset(*tools_of("owls.greet", "owls.count", "research.search"))
    with capture_logs() as logs:
        for _ in range(3):
            say_hidden(tools, caller, modules_of(caller, GUESTS))

    (line,) = logs
    assert (line["event"], line["log_level"], line["hidden"], line["listed"]) == ("tools_hidden", level, 2, 1)
    assert line["modules"] == "owls"
    assert reason in line["reason"]


def test_nothing_is_said_where_nothing_is_hidden_by_modules() -> None:
    """What the permission does not allow is no module's fault, and who reaches all misses nothing."""
    admins = ToolDefinition(name="owls.free", required_permission="admin")
    silent: list[tuple[ToolSet, dict[str, Any]]] = [
        (toolset(admins, *tools_of("research.search")), {}),
        (toolset(*tools_of("owls.greet")), {"permission": "user"}),
        (ToolSet(), {}),
    ]
    with capture_logs() as logs:
        for tools, fields in silent:
            caller = Caller(**fields)
            say_hidden(tools, caller, modules_of(caller, GUESTS))
    assert logs == []
