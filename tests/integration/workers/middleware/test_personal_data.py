"""A worker hides personal data that a profile names, in whatever a tool says while it runs."""

import pytest

from support.published_call import published, sealed_apart
from support.workers.known_tools import FewTools
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.contracts import Caller, PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.call_context import (
    LogMessage,
    LogSink,
    Progress,
    current_log,
    current_sink,
    log_to,
    progress_of,
    report_to,
)
from toolfleet_registry.settings import load_settings
from toolfleet_workers.executors.request import Target, build_request
from toolfleet_workers.middleware import PersonalDataGuard

KEY = "a secret of more than thirty-two characters"
MAIL = "ada.lovelace@example.org"
COUNT = ToolDefinition(name="owls.count")
CALL = published(COUNT.name, caller=Caller(user_id="ada", permission="owner", allowed_modules="*", agent="clerk"))


@pytest.mark.parametrize("strategy", ["redact", "mask", "hash", "block"])
async def test_what_a_tool_reports_and_logs_is_passed_on_without_it(strategy: str) -> None:
    """Whatever the strategy: a call that has begun goes on."""
    profile = {"middleware": [{"name": "pii", "strategy": strategy}]}
    settings = load_settings(agents={"clerk": profile}, signing_key=KEY)
    guard = PersonalDataGuard(FewTools(COUNT), KnownProfiles(settings))
    steps, messages = list[Progress](), list[LogMessage]()
    report_to(steps.append)
    log_to(LogSink("debug", messages.append))

    async def run(_: object) -> Attempt:
        sink, log = current_sink(), current_log()
        assert sink is not None
        assert log is not None
        for text in ("counting", f"writing to {MAIL}"):
            sink(progress_of(0.5, text))
            log.say("info", {"doing": [text]})
        return Attempt(Outcome.SUCCESS, ToolResult.ok(COUNT.name, 7))

    ended = await guard(CALL, run)

    assert ended.result.result == 7
    assert (steps[0].message, messages[0].data) == ("counting", {"doing": ["counting"]})
    assert (len(steps), len(messages)) == (2, 2)
    assert MAIL not in f"{steps}{messages}"


async def test_arguments_that_stand_apart_are_looked_through() -> None:
    """The module gets what is left of them, and not the text that was sealed."""
    settings = load_settings(agents={"clerk": {"middleware": [{"name": "pii", "strategy": "redact"}]}}, signing_key=KEY)
    guard, bodies = PersonalDataGuard(FewTools(COUNT), KnownProfiles(settings)), list[bytes]()

    async def run(call: PublishedCall) -> Attempt:
        bodies.append(build_request(call, Target.of("http://owls:1", {}), seconds=1).body)
        return Attempt(Outcome.SUCCESS, ToolResult.ok(COUNT.name, 7))

    for text in (f"write to {MAIL}", "write to nobody"):
        await guard(sealed_apart(CALL.model_copy(update={"arguments": {"text": text}})), run)

    assert MAIL.encode() not in bodies[0]
    assert b"write to nobody" in bodies[1]
