"""Defines samples of what is stored of approvals: what people are asked, votes, the journal, the call, and that it may begin."""

from typing import Any

from toolfleet_registry.contracts import PublishedCall, Turn
from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.contracts.calls import ApprovalRule, ApprovalTerms, ApprovedCall, ArtifactArgument, RetryTerms
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.contracts.limits import CallTotal, Terms
from toolfleet_tasks.approvals.approvers import ApprovalSummary, ApprovalVote, AskedApproval, JournalLine
from wire.stored.samples.forms import StoredForm, message_form, sealing
from wire.stored.samples.job_forms import ADA, ASKED_BY, AT, PLAIN_ADA

RULE = ApprovalRule(
    digest="2" * 64,
    permission="admin",
    users=frozenset({"bob"}),
    keys=frozenset({"k1"}),
    quorum=2,
    expires_seconds=600.0,
    self_approval=True,
)
ASKED = AskedApproval(
    approval_id="call-1",
    tool_name="git.push",
    tool_version="1.2",
    arguments={"branch": "main", "token": "s3cret"},
    sensitive=("/token",),
    caller=PLAIN_ADA,
    user_id="ada",
    rules=(RULE,),
    binding="3" * 64,
    requested_at=AT,
    expires_at=AT + 600,
    conversation_id="c-1",
)
VOTE = ApprovalVote(
    approval_id="call-1",
    binding="3" * 64,
    verdict="approve",
    by="key k1",
    user_id="bob",
    permission="admin",
    key_id="k1",
    reason="Looks right.",
    at=AT + 5,
)
JOURNAL = JournalLine(
    at=AT + 4, what="edited", by="user bob", reason="main it is", before="4" * 64, after="3" * 64, delivery="msg-1"
)
_PUBLISHED: dict[str, Any] = {
    "call_id": "call-1",
    "tool_name": "git.push",
    "arguments": {"branch": "main", "token": "s3cret"},
    "user_id": "ada",
    "effect": "once",
    "limit_seconds": 30.0,
    "published_at": AT,
    "deadline_at": AT + 600,
    "lane": "slow",
    "idempotency_key": "once",
    "sensitive": ("/token",),
    "replay_of": "call-0",
    "decisions": {"gate": "allowed"},
    "hides_results": True,
    "job_id": "job-1",
}
_TERMS: dict[str, Any] = {"cooldown_seconds": 1.0, "daily_limit": 5, "cost": "cheap", "requires_gate": True}
APPROVAL_TERMS = ApprovalTerms(
    binding="3" * 64,
    tool_digest="5" * 64,
    rules=(RULE.digest,),
    expires_seconds=600.0,
    seconds=60.0,
    asked="6" * 64,
)
_BY_TOOL = APPROVAL_TERMS.model_copy(update={"by_tool": True})
_CONTEXT = ToolContext(
    "main",
    user_message="push it ✓",
    user="Ada",
    chat_id=7,
    kb_context="a fact",
    confidence=0.5,
    groups={"branch": "main"},
)
CALL = PublishedCall(
    **_PUBLISHED,
    caller=ADA,
    terms=Terms(**_TERMS, totals=(CallTotal(kind="run", name="7" * 32, most=3, exit_behavior="end"),)),
    context=_CONTEXT,
    newer_job=True,
    tool_version="1.2",
    takes_input=True,
    inputs=CallInputs(round=1, responses={"q": {"action": "accept"}}, state="s", so_far="none"),
    log_level="debug",
    approval=APPROVAL_TERMS,
    retry=RetryTerms(
        max_retries=3,
        backoff_factor=3.0,
        initial_delay_seconds=0.5,
        max_delay_seconds=10.0,
        jitter=False,
        retry_on=("busy",),
    ),
    run_id="r-1",
    thread_id="c-1",
    asked_by=ASKED_BY,
    artifacts=(ArtifactArgument(name="text", id="call-0.1.0", sha256="0" * 64),),
)
_PLAIN_CALL = PublishedCall(**_PUBLISHED, caller=PLAIN_ADA, terms=Terms(**_TERMS))

APPROVAL_FORMS: tuple[StoredForm, ...] = (
    message_form(
        "asked approval",
        {"plain": ASKED, "filled": ASKED.model_copy(update={"caller": ADA, "asked_by": ASKED_BY})},
        seal=sealing("approval"),
    ),
    message_form(
        "approval summary",
        {
            "plain": ApprovalSummary(request=ASKED, effect="once"),
            "filled": ApprovalSummary(
                request=ASKED.model_copy(update={"caller": ADA, "arguments": {}}),
                effect="read",
                arguments_left_out=True,
            ),
        },
        seal=sealing("approval"),
    ),
    message_form("approval vote", {"plain": VOTE}, seal=sealing("approval")),
    message_form("approval journal", {"plain": JOURNAL}, seal=sealing("approval")),
    message_form(
        "approved call",
        {"plain": ApprovedCall(call_id="call-1", binding="3" * 64, by=("key k1",), at=AT + 5)},
        seal=sealing("approval"),
    ),
    message_form(
        "call",
        {
            "plain": _PLAIN_CALL,
            "filled": CALL,
            "repeated": _PLAIN_CALL.model_copy(update={"retry": RetryTerms(undeclared=True), "approval": _BY_TOOL}),
            "in turn": _PLAIN_CALL.model_copy(update={"turn": Turn(line=f"git:{'7' * 64}", limit=2)}),
        },
        seal=sealing("call"),
    ),
)
