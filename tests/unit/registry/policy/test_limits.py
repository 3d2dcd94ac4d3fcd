"""The terms of a tool, and the strictest of several."""

from dataclasses import fields

import pytest

from toolfleet_registry.config.agent_profile import LimitsSpec
from toolfleet_registry.contracts import CostClass, Terms, ToolDefinition
from toolfleet_registry.contracts.limits import LIMITS
from toolfleet_registry.policy.limits import cost_class, strictest, terms_of
from toolfleet_registry.tags import ToolDef


def test_every_form_has_all_limits() -> None:
    """A decorator, of which `LIMITS` is made, a definition, a profile's entry, a call's terms and a tag's tool."""
    forms = [
        *(kind.model_fields for kind in (ToolDefinition, LimitsSpec, Terms)),
        {each.name for each in fields(ToolDef)},
    ]

    assert [{*LIMITS} - {*form} for form in forms] == [set()] * len(forms)


def test_a_tool_that_asks_for_nothing_has_no_terms() -> None:
    """So that nobody pays for limits that are not there; 0 is none, as always."""
    assert terms_of(ToolDefinition(name="m.t")) is None
    assert terms_of(ToolDefinition(name="m.t", cooldown_seconds=0, daily_limit=0, cost="")) is None


def test_terms_are_those_of_the_definition() -> None:
    """A zero among others is none."""
    tool = ToolDefinition(name="m.t", cooldown_seconds=1.5, daily_limit=0, cost="cheap", requires_gate=True)

    assert terms_of(tool) == Terms(cooldown_seconds=1.5, cost="cheap", requires_gate=True)


@pytest.mark.parametrize(
    ("cost", "kind"), [(None, None), ("", None), ("free", "free"), ("cheap", "cheap"), ("chaep", "expensive")]
)
def test_an_unknown_cost_is_expensive(cost: str | None, kind: CostClass | None) -> None:
    """A typo must not make it cheap; nothing said is no class."""
    assert cost_class(cost) == kind


def test_the_strictest_of_two_keeps_both() -> None:
    """The longer cooldown, the lower limit, the dearer class, and the gate if one of them asks for it."""
    one = Terms(cooldown_seconds=5, daily_limit=3, cost="free")
    other = Terms(cooldown_seconds=7, daily_limit=9, cost="chaep", requires_gate=True)
    both = Terms(cooldown_seconds=7, daily_limit=3, cost="chaep", requires_gate=True)

    assert strictest(one, other) == strictest(other, one) == both
    assert strictest(one, Terms()) == strictest(Terms(), one) == one
    assert (strictest(None, one), strictest(one, None), strictest(None, None)) == (one, one, None)
