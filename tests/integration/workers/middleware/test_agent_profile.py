"""A worker holds calls against their agents' profiles, with what it knows itself."""

from collections.abc import Mapping

import pytest

from support.published_call import published
from support.workers.known_tools import FewTools
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.profile_rules import NO_RULES
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.contracts import Caller, PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.settings import load_settings
from toolfleet_workers.middleware import ProfileCheck

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok("owls.count", 7))
GUESTS = frozenset({"owls"})


TOOLS = (ToolDefinition(name="owls.count", tags=["reading"]), ToolDefinition(name="owls.feed"))


def asks(tool: str, agent: str | None) -> PublishedCall:
    return published(tool, caller=Caller(user_id="ada", permission="owner", allowed_modules="*", agent=agent))


async def outcome(check: ProfileCheck, call: PublishedCall) -> tuple[Attempt, list[PublishedCall]]:
    """What comes of it, and with which call it has gone on."""
    ran = list[PublishedCall]()

    async def run(call: PublishedCall) -> Attempt:
        ran.append(call)
        return SUCCESS

    return await check(call, run), ran


def check_with(later: Mapping[str, AgentProfile] | None = None, **agents: object) -> tuple[ProfileCheck, FewTools]:
    profiles = KnownProfiles(load_settings(agents=agents))
    tools = FewTools(*TOOLS, on_look=lambda: None if later is None else profiles.take(later))
    return ProfileCheck(tools, profiles, GUESTS), tools


async def test_the_profile_is_applied_whatever_the_message_says() -> None:
    """A message of somebody who has forgotten it, or never knew it, runs with what the profile leaves."""
    check, _ = check_with(reader={"tools": ["tag:reading"], "permission_at_most": "user", "allowed_modules": ["owls"]})
    attempt, ran = await outcome(check, asks("owls.count", "reader"))
    assert attempt is SUCCESS
    assert (ran[0].caller.permission, ran[0].caller.allowed_modules) == ("user", frozenset({"owls"}))

    attempt, ran = await outcome(check, asks("owls.feed", "reader"))
    assert (attempt.outcome, attempt.result.error_code, attempt.result.effect_state, ran) == (
        Outcome.PERMANENT,
        "permission_denied",
        "none",
        [],
    )
    assert attempt.result.error == "Tool 'owls.feed' is not among those of agent 'reader'."


async def test_an_unknown_agent_is_looked_for_and_then_refused() -> None:
    """A profile that was made a moment ago counts; without one nothing runs."""
    check, tools = check_with(later={"reader": AgentProfile()})
    attempt, ran = await outcome(check, asks("owls.count", "reader"))
    assert attempt is SUCCESS
    assert (len(ran), tools.looks) == (1, 1)

    attempt, ran = await outcome(check, asks("owls.count", "nobody"))
    assert (attempt.result.error_code, ran) == ("permission_denied", [])
    assert "there is no profile of 'nobody'" in str(attempt.result.error)


async def test_callers_without_an_agent_pass_as_they_are() -> None:
    """The very same message goes on, and nobody looks at anything."""
    check, tools = check_with()
    call = asks("owls.feed", None)
    attempt, ran = await outcome(check, call)

    assert attempt is SUCCESS
    assert ran == [call]
    assert ran[0] is call
    assert tools.looks == 0


@pytest.mark.parametrize(
    ("decisions", "is_run"),
    [
        ({"gate": "allowed"}, True),
        ({"gate": "asked_for_job"}, True),  # when the job was made
        ({"gate": "none"}, False),  # its agent has none
        ({"gate": "failed_open"}, False),  # its agent knows another profile
        ({}, False),  # an older agent, or a message past its agent
    ],
)
async def test_a_call_must_have_passed_a_closed_gate(decisions: dict[str, str], is_run: bool) -> None:
    """By the profile that the worker knows, and the word of the call's agent."""
    check, _ = check_with(careful={"middleware": [{"name": "gate", "tools": ["owls.feed"]}]})
    call = asks("owls.feed", "careful").model_copy(update={"decisions": decisions})
    attempt, ran = await outcome(check, call)
    assert (attempt is SUCCESS, bool(ran)) == (is_run, is_run)
    if not is_run:
        assert (attempt.outcome, attempt.result.error_code) == (Outcome.PERMANENT, "blocked_by_gate")
        assert attempt.result.effect_state == "none"
    attempt, _ = await outcome(check, asks("owls.count", "careful"))
    assert attempt is SUCCESS


def test_the_rules_of_a_call_are_those_of_its_agent() -> None:
    """Of one without a profile, of an unknown one and of an unknown tool there are none."""
    check, _ = check_with(careful={"middleware": [{"name": "tool_retry", "max_retries": 3}]})
    retry = check.rules_for(asks("owls.feed", "careful")).retry
    assert retry is not None
    assert retry.max_retries == 3
    for call in (asks("owls.feed", None), asks("owls.feed", "unknown"), asks("owls.hoot", "careful")):
        assert check.rules_for(call) is NO_RULES
