"""Agents' profiles: what they take from a caller, and how several of them count together."""

import re
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.agents.known_profiles import KnownProfiles, reach_of
from toolfleet_registry.agents.profile_rules import NamedProfile, rules_of
from toolfleet_registry.config.agent_profile import AgentProfile, selects
from toolfleet_registry.contracts import Caller, Level, ToolDefinition
from toolfleet_registry.errors import UnknownAgent
from toolfleet_registry.permissions import level_of_caller
from toolfleet_registry.settings import load_settings

GUESTS = frozenset({"research"})
LEVELS: tuple[Level, ...] = ("guest", "user", "admin", "owner")
ADA = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="production")


def tool(name: str, *tags: str) -> ToolDefinition:
    return ToolDefinition(name=name, tags=list(tags))


def named(profile: AgentProfile, agent: str = "production", place: str = "settings") -> NamedProfile:
    return NamedProfile(agent, place, profile)


def profile_of(**said: object) -> AgentProfile:
    return AgentProfile.model_validate(said)


@pytest.mark.parametrize(
    ("selectors", "selected"),
    [
        (["git.*"], {"git.push", "git.log"}),
        (["git.log"], {"git.log"}),
        (["*", "!git.push"], {"git.log", "mail.send"}),
        (["!git.push"], {"git.log", "mail.send"}),
        (["tag:reading"], {"git.log"}),
        (["git.*", "!tag:reading"], {"git.push"}),
        (["GIT.*"], set[str]()),
        ([], set[str]()),
    ],
)
def test_selectors_name_tools_by_name_pattern_and_tag(selectors: list[str], selected: set[str]) -> None:
    """What one takes out stays out, wherever in the list it stands."""
    tags = {"git.push": [], "git.log": ["reading"], "mail.send": list[str]()}
    found = {name for name, its in tags.items() if selects(selectors, [name], its)}

    assert found == selected
    assert found == {name for name, its in tags.items() if selects(selectors[::-1], [name], its)}


@pytest.mark.parametrize(
    ("selectors", "is_selected"),
    [
        (["git.send"], True),
        (["git.push"], True),
        (["git.pu*"], True),
        (["git.log"], False),
        (["*", "!git.push"], False),
        (["git.send", "!git.pu*"], False),
        (["!git.log"], True),
    ],
)
def test_a_selector_may_use_a_former_name(selectors: list[str], *, is_selected: bool) -> None:
    """What takes a tool out under one of its names takes it out under each."""
    tool = ToolDefinition(name="git.send", former_names=["git.push"])
    held = profile_of(tools=selectors)

    assert held.takes(tool) is is_selected


@pytest.mark.parametrize(
    ("selector", "is_one"),
    [
        ("git.*", True),
        ("!tag:reading", True),
        ("a" * 256, True),
        ("", False),
        ("!", False),
        ("tag:", False),
        ("a b", False),
    ],
)
def test_the_schema_of_a_profile_says_what_a_selector_is(selector: str, is_one: bool) -> None:
    """Whoever writes one by the schema is refused nothing for it."""
    schema = AgentProfile.model_json_schema()

    assert jsonschema_rs.is_valid(schema, {"tools": [selector]}) == is_one
    if is_one:
        assert profile_of(tools=[selector]).tools == (selector,)
    else:
        with pytest.raises(ValueError, match="selects no tools"):
            profile_of(tools=[selector])


levels = st.sampled_from(LEVELS)
modules = st.one_of(st.just("*"), st.frozensets(st.sampled_from(["git", "mail", "research"])))


@given(level=levels, most=levels, reached=st.one_of(st.none(), modules), allowed=modules)
def test_a_profile_narrows_and_never_widens(level: Level, most: Level, reached: object, allowed: object) -> None:
    """Whatever it says: neither the permission nor the modules are more than the caller's own."""
    profile = profile_of(permission_at_most=most, allowed_modules=allowed)
    known = KnownProfiles(load_settings(agents={"production": profile}))
    caller = Caller.model_validate({"permission": level, "allowed_modules": reached, "agent": "production"})
    without = reach_of(caller.model_copy(update={"agent": None}), known, GUESTS)
    reach = reach_of(caller, known, GUESTS)

    assert level_of_caller(reach.caller.permission) == min(level_of_caller(level), level_of_caller(most))
    for module in ("git", "mail", "research"):
        may = reach.modules == "*" or module in reach.modules
        assert may == (
            (without.modules == "*" or module in without.modules) and (allowed == "*" or module in allowed)  # type: ignore[operator]
        )


def test_settings_and_registry_both_count() -> None:
    """Of two profiles of one agent, and of those before it in its name, each takes something."""
    known = KnownProfiles(
        load_settings(
            agents={
                "production": {"tools": ["git.*", "mail.*"], "mode": "all"},
                "research": {"mode": "subagent", "permission_at_most": "user"},
            }
        )
    )
    known.take({"production": profile_of(tools=["git.*", "web.*"], mode="all")})
    reach = reach_of(ADA.model_copy(update={"agent": "production/research"}), known, GUESTS)

    assert reach.among([tool("git.log"), tool("mail.send"), tool("web.get")]) == [tool("git.log")]
    assert reach.caller.permission == "user"
    assert reach.caller.agent == "production/research"


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("nobody", "there is no profile of 'nobody'"),
        ("research", "'research' is a subagent"),
        ("production/production", "'production' is a primary agent"),
        ("production//research", "there is no profile of ''"),
        ("/".join(["production"] * 9), "8 agents at most"),
        ("production/x'; drop", "there is no profile"),
    ],
)
def test_an_agent_without_a_profile_may_do_nothing(agent: str, words: str) -> None:
    """Also one that does not stand where its profile says."""
    known = KnownProfiles(load_settings(agents={"production": {}, "research": {"mode": "subagent"}}))
    with pytest.raises(UnknownAgent, match="may do nothing here") as refused:
        known.of(Caller(agent=agent))

    assert words in str(refused.value)


def test_callers_that_name_no_agent_have_the_default_one() -> None:
    """As programs that know of no profiles; without a default they have what they have."""
    agents = {"careful": {"permission_at_most": "guest"}}
    assert KnownProfiles(load_settings(agents=agents)).of(Caller()) is None

    reach = reach_of(
        Caller(permission="owner"), KnownProfiles(load_settings(agents=agents, default_agent="careful")), GUESTS
    )
    assert (reach.caller.permission, reach.modules, reach.caller.agent) == ("guest", "*", "careful")


def test_of_several_rules_the_strictest_counts() -> None:
    """Fewest retries, longest cooldown, and every limit of calls, personal data and approval there is."""
    one = profile_of(
        middleware=[
            {"name": "tool_retry", "max_retries": 5},
            {"name": "limits", "daily_limit": 10, "cooldown_seconds": 1},
            {"name": "tool_call_limit", "run_limit": 3},
            {"name": "human_in_the_loop", "approve_tools": ["git.*"]},
        ]
    )
    other = profile_of(
        middleware=[
            {"name": "tool_retry", "max_retries": 0, "tools": ["git.push"]},
            {"name": "limits", "daily_limit": 50, "cooldown_seconds": 60},
            {"name": "tool_call_limit", "run_limit": 3},
            {"name": "gate", "fails": "open"},
        ]
    )
    rules = rules_of([named(one), named(other, place="registry")], tool("git.push"))

    assert rules.retry is not None
    assert rules.retry.max_retries == 0
    assert rules.terms is not None
    assert (rules.terms.daily_limit, rules.terms.cooldown_seconds) == (10, 60)
    assert rules.terms.requires_gate
    assert not rules.gate_fails_closed
    assert len(rules.approvals) == 1
    elsewhere = rules_of([named(one), named(other)], tool("mail.send"))
    assert elsewhere.retry is not None
    assert elsewhere.retry.max_retries == 5
    assert elsewhere.approvals == ()


def test_equal_profiles_have_one_digest_in_every_process() -> None:
    """In whatever order sets are; another rule has another one, other words have not."""
    said = {
        "allowed_modules": ["git", "mail", "web"],
        "middleware": [{"name": "tool_retry", "retry_on": ["busy", "timed_out"]}],
    }
    again = {
        "middleware": [{"name": "tool_retry", "retry_on": ["timed_out", "busy"]}],
        "allowed_modules": ["web", "mail", "git"],
    }

    assert profile_of(**said).digest == profile_of(**again, description="Reads.").digest
    assert profile_of(**said).digest != profile_of(**said, permission_at_most="user").digest


@pytest.mark.parametrize(
    "middleware",
    [
        {"name": "tool_retry"},
        {"name": "limits", "cooldown_seconds": 5},
        {"name": "pii"},
        {"name": "human_in_the_loop", "approve_tools": ["git.*"], "expires_seconds": 600},
    ],
)
def test_a_profile_is_the_same_after_it_was_sent(middleware: dict[str, object]) -> None:
    """As JSON in a child's environment, or in the registry: or one process's approval would be none for another."""
    profile = profile_of(middleware=[middleware])

    assert AgentProfile.model_validate_json(profile.model_dump_json()).digest == profile.digest


GUIDES = Path(__file__).parents[4] / "docs" / "guides"


@pytest.mark.parametrize("guide", ["approvals", "limits-and-gates"])
def test_the_profiles_of_a_guide_are_settings(guide: str) -> None:
    """Each block of TOML is one that a fleet starts with, and knows all of."""
    blocks = re.findall(r"```toml\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)

    assert blocks
    for block in blocks:
        tables = tomllib.loads(block)
        settings = load_settings(**tables)
        assert [name for name in tables if not getattr(settings, name)] == []
