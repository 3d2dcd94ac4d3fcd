"""Asks people to approve calls, takes their decisions once, and completes approvals from any worker.

At least once: the deciding process may have died before it did the step, and the whole fleet may have been down. Each
step may come twice.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from redis.exceptions import ResponseError

from toolfleet_registry.agents.profile_rules import approval_fault, terms_of_approval
from toolfleet_registry.contracts import PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.artifacts import owner_of
from toolfleet_registry.contracts.calls import ApprovalRule, ApprovedCall
from toolfleet_registry.errors import (
    ApprovalNotTaken,
    BegunBefore,
    FleetError,
    FleetUnavailable,
    PersonalDataBlocked,
    PublishUnconfirmed,
)
from toolfleet_registry.policy.redaction import redacted
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import TraceContext
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import AdmissionControl, Refusal, digest_of, refused
from toolfleet_tasks.approvals.approvers import (
    ApprovalVote,
    Approver,
    AskedApproval,
    JournalLine,
    has_asked,
    missing_votes,
    refusal_of_approver,
)
from toolfleet_tasks.approvals.records import ApprovalChange, ApprovalRecords, StoredApproval
from toolfleet_tasks.calls.dispatcher import Dispatcher
from toolfleet_tasks.calls.prepare import CallPreparation
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.messages.ids import is_program
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost

log = get_logger(__name__)

_MOST_WAITING = 1_000_000  # calls in a module's queue: people have waited for this one

_PASSING = frozenset({"busy", "fleet_unavailable", "internal"})

_TRIES = 20  # decisions that come at one moment: each reads again what the one before has written
_DECISION_SECONDS = 10.0  # for Redis to take one
_LONGEST_NAMES = 500  # characters, of the arguments that an edit has replaced
_LONGEST_SHOWN = 2_000  # characters of arguments in a refusal: the approval itself has all

Asked = tuple[AskedApproval, Refusal | None]
"""What people are asked about a call; and why it does not wait for them, if it does not."""

_Make = Callable[[StoredApproval], Awaitable[ApprovalChange]]

_BATCH = 100
_AT_ONCE = 8  # each is read as a whole, and may have megabytes
_AGAIN_SECONDS = 15.0  # until a call that was published, and is not started, is published again
_MARGIN_SECONDS = 5.0  # after a deadline, for those who wait for the call to end it with what they know


class ApprovedCalls:
    """The approved calls of one session. `kick` has a program go on whose call has ended so."""

    def __init__(self, ledger: Ledger, dispatcher: Dispatcher, kick: Callable[[str], Awaitable[None]]) -> None:
        self._ledger, self._dispatcher, self._kick = ledger, dispatcher, kick

    async def publish(self, call: PublishedCall, origin: TraceContext | None = None) -> None:
        """Put an approved call into its queue, where it counts towards its limits.

        If a limit is reached, the call ends with that.

        What may pass, such as a full queue or a broker that is away, leaves it as it is: it is tried again until its deadline.
        `origin`: where it was made in a trace, which goes on from there.
        """
        try:
            answer = await self._dispatcher.detach(call, most_waiting=_MOST_WAITING, again=True, origin=origin)
        except PublishUnconfirmed as exc:  # it was started, too
            log.debug("approved_call_not_confirmed", call_id=call.call_id, error=str(exc))
            return
        if isinstance(answer, Refusal) or answer is None:
            return
        log.warning("approved_call_not_published", call_id=call.call_id, tool=call.tool_name, error=answer.error)
        if answer.error_code not in _PASSING:
            await self.end(call, answer)

    async def end(self, call: PublishedCall, result: ToolResult) -> None:
        """End a call that was never started. One that has ended, or was started after all, stays as it is."""
        unknown = fleet_results.outcome_unknown(call.tool_name, "the call had begun before it was ended.")
        await self._ledger.end(call, CallEnding(result, result, unknown), data_id=ANY_DATA)
        if call.job_id is not None and is_program(call.job_id):
            await self._kick(call.job_id)


class ApprovalService:
    """The approvals of one session.

    Raises `FleetUnavailable` if Redis does not answer, and `ApprovalNotTaken` for a decision that is not accepted.
    """

    def __init__(
        self,
        preparation: CallPreparation,
        admission: AdmissionControl,
        records: ApprovalRecords,
        calls: ApprovedCalls,
    ) -> None:
        self.records = records
        self._preparation, self._admission, self._calls = preparation, admission, calls

    async def ask(
        self,
        call: PublishedCall,
        rules: Sequence[ApprovalRule],
        conversation_id: str | None,
    ) -> "Asked":
        """Have a call wait for people. Returns what they are asked, or the refusal of a call that does not wait."""
        now = fleet_clock.now()
        assert call.approval is not None
        request = AskedApproval(
            approval_id=call.call_id,
            tool_name=call.tool_name,
            tool_version=call.tool_version,
            arguments=call.arguments,
            sensitive=call.sensitive,
            caller=call.caller,
            user_id=call.user_id,
            rules=tuple(rules),
            binding=call.approval.binding,
            requested_at=now,
            expires_at=now + min(rule.expires_seconds for rule in rules),
            conversation_id=conversation_id,
            asked_by=call.asked_by,
        )
        intention = self._admission.intention_of(call) if call.idempotency_key else None
        return request, await self.records.request(call, request, intention=intention)

    async def ask_for_step(self, call: PublishedCall) -> ToolResult | Refusal | None:
        """Ask for the approval of a job's step as `ask` does, without waiting for its end.

        Returns and raises as `Dispatcher.detach`.
        """
        rules = self.rules_of(call)
        if not rules:
            return fleet_results.changed(call.tool_name, "changed: its agent's profile is another one now")
        try:
            async with asyncio.timeout(_DECISION_SECONDS):
                _, refusal = await self.ask(call, rules, None)
        except (TimeoutError, OSError, ResponseError) as exc:
            raise PublishUnconfirmed(str(exc) or "Redis does not answer") from exc
        if refusal is None or refusal.kind == "joined":
            return refusal
        if refusal.kind == "ended":
            raise BegunBefore("it has ended already")
        if refusal.kind == "crowd":
            return fleet_results.too_many_wait(call.tool_name, refusal.count)
        return refused(call.tool_name, refusal)

    def rules_of(self, call: PublishedCall) -> tuple[ApprovalRule, ...]:
        """Return the rules by which such a call needs an approval now."""
        return self._preparation.approval_rules(call.tool_name, call.caller)

    async def show(self, approval_id: str) -> StoredApproval:
        """Return one approval. Raises `ApprovalNotTaken` (`unknown`)."""
        found = await self.records.read(approval_id)
        if found is None:
            raise ApprovalNotTaken(approval_id, "unknown")
        return found

    async def approve(
        self,
        approval_id: str,
        approver: Approver,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str = "",
        seen: str | None = None,
    ) -> StoredApproval:
        """Approve a call, perhaps with other `arguments`, each of which replaces the one of its name: what others have approved before counts no more then.

        With the last approval that is needed it is on its way. `seen`: the binding of what they were shown; another one is `changed`.
        Where more than one has to approve, and once a call was edited, a decision without it is `unseen`.
        Raises `ApprovalNotTaken`, and `ValueError` for arguments that the tool does not take.
        """

        async def make(found: StoredApproval) -> ApprovalChange:
            self._check(found, approver, seen)
            return await self._approval(found, approver, arguments, self._hidden(found, reason))

        return await self._decide(approval_id, make)

    async def reject(
        self, approval_id: str, approver: Approver, *, reason: str = "", seen: str | None = None
    ) -> StoredApproval:
        """Reject a call; the first rejection decides. `seen` as of `approve`. Raises `ApprovalNotTaken`."""

        async def make(found: StoredApproval) -> ApprovalChange:
            self._check(found, approver, seen, rejects=True)
            return self._rejection(found, approver, self._hidden(found, reason))

        return await self._decide(approval_id, make)

    async def go_on(self, found: StoredApproval) -> None:
        """Take the next step of an approval that is decided."""
        tool_name = found.request.tool_name
        if found.state == "approved":
            await self._calls.publish(found.call, found.origin)
        elif found.state == "rejected":
            last = found.journal[-1]
            result = (
                fleet_results.rejected(tool_name, last.reason)
                if last.before is None
                else fleet_results.changed(tool_name, last.reason)
            )
            await self._calls.end(found.call, result)
        elif found.state == "expired":
            await self._calls.end(found.call, fleet_results.approval_expired(tool_name))

    async def end_late(self, found: StoredApproval) -> None:
        """End an approved call whose own deadline has passed, if it has not ended."""
        await self._calls.end(found.call, fleet_results.expired(found.call.tool_name))

    async def expire(self, found: StoredApproval) -> bool:
        """Deny a call whose time is over.

        Returns False if it is not over by some clock, or the call has just been decided.
        """
        line = JournalLine(at=fleet_clock.now(), what="expired", by="fleet")
        decision = ApprovalChange("expired", found.request, found.call, found.votes, [*found.journal, line])
        return await self.records.decide(found, decision) == "taken"

    async def _decide(self, approval_id: str, make: _Make) -> StoredApproval:
        try:
            async with asyncio.timeout(_DECISION_SECONDS):
                found = await self._taken(approval_id, make)
                if found.state != "waiting":
                    await self.go_on(found)
                return found
        except (OSError, TimeoutError) as exc:
            raise FleetUnavailable("Redis has not confirmed the decision: give it again.") from exc

    async def _taken(self, approval_id: str, make: _Make) -> StoredApproval:
        for _ in range(_TRIES):
            found = await self.show(approval_id)
            if found.state != "waiting":
                raise ApprovalNotTaken(approval_id, found.state)
            if found.place == "done":
                raise ApprovalNotTaken(approval_id, "ended")
            answer = await self.records.decide(found, await make(found))
            if answer == "taken":
                return await self.show(approval_id)
            if answer != "raced":
                raise ApprovalNotTaken(approval_id, answer)
        raise ApprovalNotTaken(approval_id, "raced")

    async def _approval(
        self, found: StoredApproval, approver: Approver, arguments: Mapping[str, Any] | None, reason: str
    ) -> ApprovalChange:
        now, request, call, votes = fleet_clock.now(), found.request, found.call, list(found.votes)
        journal = list(found.journal)
        tool = self._preparation.tool_of(ToolCall(tool_name=call.tool_name), call.caller)
        fault = (
            "changed: its caller may not use the tool any more"
            if isinstance(tool, ToolResult)
            else approval_fault(call, tool, self.rules_of(call))
        )
        if isinstance(tool, ToolResult) or fault is not None:
            line = _decided("rejected", approver, str(fault), now)
            line = line.model_copy(update={"by": "fleet", "before": request.binding})
            return ApprovalChange("rejected", request, call, votes, [*journal, line])
        if arguments:
            call = await self._edited(call, {**call.arguments, **arguments}, tool, request.rules)
            assert call.approval is not None
            replaced = ", ".join(
                name for name, value in call.arguments.items() if found.call.arguments.get(name) != value
            )
            line = _decided("edited", approver, replaced[:_LONGEST_NAMES], now)
            line = line.model_copy(update={"before": request.binding, "after": call.approval.binding})
            journal, votes = [*journal, line], []
            request = request.model_copy(update={"arguments": call.arguments, "binding": call.approval.binding})
        votes.append(_vote(request, approver, "approve", reason, now))
        journal.append(_decided("approved", approver, reason, now))
        if missing_votes(request, votes) > 0:
            return ApprovalChange("waiting", request, call, votes, journal)
        assert call.approval is not None
        call = call.model_copy(update={"published_at": now, "deadline_at": now + call.approval.seconds})
        by = tuple(vote.by if vote.user_id is None else f"user {vote.user_id}" for vote in votes)
        approved = ApprovedCall(call_id=call.call_id, binding=request.binding, by=by, at=now)
        return ApprovalChange("approved", request, call, votes, journal, approved)

    def _rejection(self, found: StoredApproval, approver: Approver, reason: str) -> ApprovalChange:
        now = fleet_clock.now()
        votes = [*found.votes, _vote(found.request, approver, "reject", reason, now)]
        line = _decided("rejected", approver, reason, now)
        return ApprovalChange("rejected", found.request, found.call, votes, [*found.journal, line])

    def _hidden(self, found: StoredApproval, reason: str) -> str:
        """Return a person's reason without the personal data that the profile hides.

        A reason never stops a decision.
        """
        try:
            return str(self._preparation.hidden_input(found.request.tool_name, found.call.caller, reason))
        except PersonalDataBlocked:
            return "(left out: it has personal data)"

    def _check(self, found: StoredApproval, approver: Approver, seen: str | None, *, rejects: bool = False) -> None:
        """Raise `ApprovalNotTaken` for a decision that this person may not make, or about another call than the one shown.

        Who has approved may still reject; and who has asked may always reject the call.
        """
        votes = () if rejects else found.votes
        request, delivery = found.request, approver.delivery
        if delivery is not None and any(line.delivery == delivery for line in found.journal):
            raise ApprovalNotTaken(found.approval_id, "repeated")
        refusal = None if rejects and has_asked(request, approver) else refusal_of_approver(request, approver, votes)
        if refusal is not None:
            raise ApprovalNotTaken(found.approval_id, "forbidden", refusal)
        edits = [line for line in found.journal if line.what == "edited"]
        if seen is None and (edits or len(request.rules) > 1 or any(rule.quorum > 1 for rule in request.rules)):
            raise ApprovalNotTaken(found.approval_id, "unseen")
        if seen not in {None, request.binding}:
            raise _changed(request, edits, seen)

    async def _edited(
        self, call: PublishedCall, arguments: dict[str, Any], tool: Any, rules: Sequence[ApprovalRule]
    ) -> PublishedCall:
        """Return the call with other arguments, judged and bound to artifacts as its caller's own.

        Raises `ValueError` with what is wrong with them.
        """
        from toolfleet_registry.policy.turns import turn_of  # hardly any call is edited

        asked = ToolCall(tool_name=call.tool_name, arguments=arguments, user_id=call.user_id)
        judged = self._preparation.judge(asked, call.caller, None)
        if isinstance(judged, ToolResult):
            raise ValueError(judged.error or "the tool does not take these arguments")
        before = call.approval
        assert before is not None
        hidden = self._preparation.hidden_input(call.tool_name, call.caller, judged.arguments)
        bound = await self._preparation.bound(tool, hidden, call.caller, owner_of(call))
        if isinstance(bound, ToolResult):
            raise ValueError(bound.error)
        said, artifacts = bound
        changes = {"arguments": said, "artifacts": artifacts, "turn": turn_of(tool, said, call.user_id)}
        edited = call.model_copy(update=changes)
        terms = terms_of_approval(edited, tool, rules, asked=before.asked or digest_of(call))
        return edited.model_copy(update={"approval": terms.model_copy(update={"seconds": before.seconds})})


def approval_service(
    connection: PipelinedConnection,
    ledger: Ledger,
    dispatcher: Dispatcher,
    preparation: CallPreparation,
    admission: AdmissionControl,
    settings: Settings,
    *,
    kick: Callable[[str], Awaitable[None]],
) -> ApprovalService:
    """Return the service of a session with these parts."""
    records, calls = ApprovalRecords(connection, settings), ApprovedCalls(ledger, dispatcher, kick)
    return ApprovalService(preparation, admission, records, calls)


def _changed(request: AskedApproval, edits: Sequence[JournalLine], seen: str | None) -> ApprovalNotTaken:
    """Describe who has replaced which arguments since the call was `seen`, and with which arguments it would be made now."""
    known = [line.before for line in edits]
    since = edits[known.index(seen) :] if seen in known else edits
    said = "; ".join(f"{line.by} replaced {line.reason or 'some'}" for line in since)
    now = json.dumps(redacted(request.arguments, request.sensitive), ensure_ascii=False)
    now = now if len(now) <= _LONGEST_SHOWN else f"{now[:_LONGEST_SHOWN]} …"
    return ApprovalNotTaken(
        request.approval_id, "changed", more=f" ({said})" if said else "", hint=f"It would be called with {now} now."
    )


def _decided(
    what: Literal["approved", "rejected", "edited"], approver: Approver, reason: str, at: float
) -> JournalLine:
    return JournalLine(at=at, what=what, by=approver.name, reason=reason, delivery=approver.delivery)


def _vote(request: AskedApproval, approver: Approver, verdict: Any, reason: str, at: float) -> ApprovalVote:
    return ApprovalVote(
        approval_id=request.approval_id,
        binding=request.binding,
        verdict=verdict,
        by=approver.by,
        user_id=approver.user_id,
        permission=approver.permission,
        key_id=approver.key_id,
        reason=reason,
        at=at,
    )


async def settle_due(service: ApprovalService, *, seconds: float, lease_seconds: float) -> int:
    """Settle due approvals, for at most `seconds`. Returns how many were settled. Raises Redis's errors."""
    count, loop = 0, asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        due = await service.records.due(count=_BATCH, lease_seconds=lease_seconds)
        count += len(due)
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(_settle_one(service, each) for each in due[first : first + _AT_ONCE]))
        if len(due) < _BATCH:
            break
    return count


async def _settle_one(service: ApprovalService, approval_id: str) -> None:
    try:
        await _settle(service, approval_id)
    except (FleetError, RedisConnectionLost, ResponseError, TimeoutError) as exc:  # it is due again after its lease
        log.warning("approval_not_settled", approval_id=approval_id, error=str(exc) or repr(exc))


async def _settle(service: ApprovalService, approval_id: str) -> None:
    found = await service.records.read(approval_id)
    if found is None or found.place == "done":
        await service.records.settle(approval_id, found)
        return
    if found.state == "waiting":
        if await service.expire(found):
            found = await service.show(approval_id)
        else:  # by another clock it is not late, or it was decided just now
            await service.records.put_off(approval_id, max(found.request.expires_at, fleet_clock.now() + 1))
            return
    if found.state != "approved":
        await service.go_on(found)
        await service.records.settle(approval_id, found)
        return
    await _follow_up(service, found)


async def _follow_up(service: ApprovalService, found: StoredApproval) -> None:
    """Publish an approved call until it is started, and end it if it is still open at its deadline."""
    now, deadline = fleet_clock.now(), found.call.deadline_at
    if now > deadline + _MARGIN_SECONDS:
        await service.end_late(found)
        await service.records.settle(found.approval_id, found)
    elif found.place == "published":
        await service.go_on(found)
        await service.records.put_off(found.approval_id, min(now + _AGAIN_SECONDS, deadline + 2 * _MARGIN_SECONDS))
    else:
        await service.records.put_off(found.approval_id, deadline + 2 * _MARGIN_SECONDS)
