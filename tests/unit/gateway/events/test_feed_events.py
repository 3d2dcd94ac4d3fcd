"""Who hears of which event, and what two looks at modules tell."""

import pytest

from support.gateways.keyed_gateway import identity_of
from toolfleet_gateway.events import EVENTS_LOST, FeedEvent, Listener, changes_between, of_load_error, of_module
from toolfleet_registry.contracts import ModuleStatus
from toolfleet_registry.contracts.tool_definition import ToolLoadError

ERROR = ToolLoadError(file="/tools/owl.py", error_type="SyntaxError")


def listener(who: str) -> Listener:
    return Listener(identity_of(who), frozenset({"open"}))


@pytest.mark.parametrize(
    ("event", "hear"),
    [
        (FeedEvent("tool_changed", {}, module="owls", needs="user"), {"ada", "olga", "vera", "bob"}),
        (FeedEvent("tool_changed", {}, module="owls", needs="admin"), {"ada", "olga", "vera"}),
        # A tool that nobody knows any more, and a typo of a permission.
        (FeedEvent("tool_removed", {}, module="owls"), {"ada", "olga", "vera"}),
        (FeedEvent("tool_removed", {}, module="owls", needs="everyone"), {"ada", "olga", "vera"}),
        (of_load_error("owls", ERROR), {"ada", "olga", "vera"}),
        (of_module("owls", is_up=False), {"ada", "olga", "vera", "bob"}),
        (EVENTS_LOST, {"ada", "olga", "vera", "bob", "gus"}),
    ],
)
def test_an_event_is_for_those_who_may_see_its_tool(event: FeedEvent, hear: set[str]) -> None:
    """Viewers hear of everything, others of what they may use, and a guest without modules of nothing."""
    assert {who for who in ("ada", "olga", "vera", "bob", "gus") if listener(who).may_hear(event)} == hear


def test_a_module_that_fails_or_comes_back_is_told_of_once() -> None:
    """So is a load error that was not there before; what stays as it is, is no event."""
    up, down = ModuleStatus(module="owls", ok=True), ModuleStatus(module="owls", ok=False)
    broken = up.model_copy(update={"load_errors": (ERROR,)})

    def told(*looks: dict[str, ModuleStatus]) -> list[str]:
        return [event.kind for event in changes_between(*looks)]

    assert told({"owls": up}, {"owls": down}) == told({"owls": up}, {}) == ["module_down"]
    assert told({"owls": down}, {"owls": up}) == told({}, {"owls": up}) == ["module_up"]
    assert told({"owls": up}, {"owls": broken}) == ["tool_load_error"]
    assert told({"owls": broken}, {"owls": broken}) == told({}, {"owls": down}) == []
