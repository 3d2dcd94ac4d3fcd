"""A worker hides personal data that a profile names, in whatever a tool says while it runs."""

import pytest

from support.published_call import published
from support.workers.known_tools import FewTools
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.contracts import Caller, ToolDefinition, ToolResult
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
from toolfleet_workers.middleware import PersonalDataGuard

MAIL = "ada.lovelace@example.org"
COUNT = ToolDefinition(name="owls.count")
CALL = published(COUNT.name, caller=Caller(user_id="ada", permission="owner", allowed_modules="*", agent="clerk"))


@pytest.mark.parametrize("strategy", ["redact", "mask", "hash", "block"])
async def test_what_a_tool_reports_and_logs_is_passed_on_without_it(strategy: str) -> None:
    """Whatever the strategy: a call that has begun goes on."""
    profile = {"middleware": [{"name": "pii", "strategy": strategy}]}
    settings = load_settings(agents={"clerk": profile}, signing_key="a secret of more than thirty-two characters")
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
