"""Writes a call's audit line: who asked for what, what was decided on its way, and how it ended.

Neither arguments nor results nor a module's words are in it, but for the `side_effects` that a tag's tool names. Who wins a call's end in the ledger writes its line there,
in the same step, and then tells the log; calls that never get that far have theirs from `calls/audit_trail.py`.
"""

import functools
import json
import logging
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, TypeAlias

from pydantic_core import to_json

from toolfleet_registry import metric_families
from toolfleet_registry.contracts import Audit, Caller, PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import AuditOutcome
from toolfleet_registry.contracts.calls import CONVERSATION, USER
from toolfleet_registry.metrics import CallRecorder
from toolfleet_registry.policy.redaction import sensitive_paths
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import BusyLog
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.messages.signing import arguments_digest, digest_of

log = BusyLog(__name__)

EVENT = "tool_call_audited"
FIELD = "line"
"""Of an entry of the stream: holds the line as JSON."""

AuditLine: TypeAlias = dict[str, Any]
"""What holds for no call, or is not known of this one, is left out. `ts` is seconds since the epoch."""

PartsOfLine: TypeAlias = tuple[str, str, str, str, int]
"""A line's beginning, its end for each way in which the call can end, and how many lines are kept."""

_REFUSED = frozenset(
    {
        "invalid_tool_name",
        "unknown_module",
        "unknown_tool",
        "version_mismatch",
        "invalid_arguments",
        "permission_denied",
        "rate_limited",
        "blocked_by_gate",
        "approval_required",
        "approval_denied",
        "conflict",
    }
)
_DECIDED = {"permission_denied": "permission", "rate_limited": "limits", "blocked_by_gate": "gate"}
_LONGEST_NAME = 256  # characters of a name or an id: what a model writes may be anything
_MOST_SIDE_EFFECTS = 20  # a line stays about as long as the others
_SILENCE_SECONDS = 10.0  # between two log lines about lines that were not written

_DONE = ',"outcome":"success","effect_state":"done"}'
_PARTS_KEPT = 1_024

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Auditor:
    """Makes the lines of a fleet's calls, and tells the log of those that stand."""

    def __init__(self, settings: Settings) -> None:
        self.missed = 0
        """Lines that could not be written into the stream."""
        self.untold = 0
        """Lines that the program's own logging has refused."""
        self.kept = settings.audit_kept
        """About how many lines the stream keeps."""
        self._is_signed = settings.signing_key is not None
        self._silent_until = 0.0
        self._caller_part = functools.lru_cache(_PARTS_KEPT)(self._part_about)
        self._decided_part = functools.lru_cache(_PARTS_KEPT)(_part_decided)

    def line_of(
        self,
        call: PublishedCall,
        result: ToolResult,
        decisions: Mapping[str, str],
        own_ms: tuple[float, float] | None = None,
        *,
        is_short: bool = False,
    ) -> str:
        """The line of a call that a worker has ended, as it is kept; `is_short`: as `FINISH` takes it, without what the result's text says.

        It is joined from parts: what the caller and the decisions say is the same in nearly all lines, and kept.

        `own_ms`: what of the last attempt the worker itself took, before its request and after it, where that is worth mention.
        """
        seen, said = result.audit, {**decisions, "published": "yes"}
        ts = seen.ts if seen.call_id else fleet_clock.now()
        user, conversation = said.pop(USER, call.user_id), said.pop(CONVERSATION, None)
        line = "" if is_short else f'{{"call_id":{_quoted(call.call_id)},"tool":{_quoted(call.tool_name)},"ts":{ts!r}'
        line += self._caller_part(user, call.caller.permission)
        if (digest := digest_of(call)) is not None:
            line += f',"arguments":"{digest}"'
        if conversation is not None:
            line += f',"{CONVERSATION}":{_quoted(_cut(conversation) or "")}'
        line += self._decided_part(*said.items())
        if call.caller.agent is not None:
            line += f',"agent":{_quoted(_cut(call.caller.agent) or "")}'
        if call.terms is not None and call.terms.cost is not None:
            line += f',"cost":{_quoted(call.terms.cost)}'
        if call.replay_of is not None:
            line += f',"replay_of":{_quoted(call.replay_of)}'
        if is_short:
            line += "\n"
        elif seen.call_id:
            line += f',"attempts":{seen.attempts}'
            line += "" if seen.queued_ms is None else f',"queued_ms":{seen.queued_ms!r}'
            line += "" if seen.duration_ms is None else f',"duration_ms":{seen.duration_ms!r}'
            line += "" if seen.worker is None else f',"worker":{_quoted(seen.worker)}'
        if own_ms is not None:
            line += f',"own_ms":[{own_ms[0]!r},{own_ms[1]!r}]'
        if type(result.result) is dict and "side_effects" in result.result:
            named = _side_effects(call, result.result)
            line += "" if named is None else f',"side_effects":{_encode(named)}'
        is_done = result.success and result.effect_state == "done" and result.error_code is None
        return line + (_DONE if is_done else tail_of(result))

    def line_of_unpublished(self, call: PublishedCall, result: ToolResult) -> AuditLine:
        """The line of a call that its agent has ended before it was in its queue."""
        line = self._about(call, _refusal(call.decisions, result), ts=fleet_clock.now())
        return _known(line | {"attempts": 0} | _end(result))

    def line_of_refused(
        self,
        call_id: str,
        call: ToolCall,
        caller: Caller,
        result: ToolResult,
        decisions: Mapping[str, str],
        tool: ToolDefinition | None,
    ) -> AuditLine:
        """Return the audit line of a refused call. Without its `tool` it is unknown which arguments are sensitive."""
        is_known = tool is not None and isinstance(call.arguments, dict)
        line: AuditLine = {
            "call_id": call_id,
            "tool": _cut(call.tool_name),
            "ts": fleet_clock.now(),
            "user_id": _cut(call.user_id if caller.user_id is None else caller.user_id),
            "permission": _cut(caller.permission),
            "signed": self._is_signed,
            "arguments": arguments_digest(call.arguments, sensitive_paths(tool)) if is_known and tool else None,
            **_decided(_refusal(decisions, result)),
            "attempts": 0,
        }
        if caller.agent is not None:
            line["agent"] = _cut(caller.agent)
        return _known(line | _end(result))

    def parts_of_end(self, call: PublishedCall, ending: CallEnding) -> PartsOfLine:
        """Return the parts of which `END` makes the line, for every possible end of the call."""
        line = _known(self._about(call, {**call.decisions, "published": "yes"}, ts=fleet_clock.now()))
        waited = {"queued_ms": round(max(line["ts"] - call.published_at, 0) * 1000, 1)}
        unbegun, undone, unknown = tail_of(ending.unbegun, waited), tail_of(ending.undone), tail_of(ending.unknown)
        return (text_of(line)[:-1], unbegun, undone, unknown, self.kept)

    def parts_of_refusal(self, call_id: str, ending: CallEnding) -> PartsOfLine:
        """The same for a call of which its message, which was refused, can say nothing."""
        line = {"call_id": call_id, "tool": _cut(ending.unbegun.tool_name), "ts": fleet_clock.now(), "signed": False}
        head, tail = text_of({**line, "decisions": {"published": "message_refused"}})[:-1], tail_of(ending.unbegun)
        return (head, tail, tail, tail_of(ending.unknown), self.kept)

    def tell(self, line: AuditLine, *, is_kept: bool = True) -> None:
        """Log the line of a call that has ended; `is_kept`: whether it is in the stream. Raises nothing."""
        self._log(log.now().info, EVENT, line)
        if (calls := this_process().calls) is not None:
            _count(calls, line)
        if not is_kept:
            self.miss("Redis refuses it")

    def tell_finished(self, call: PublishedCall, result: ToolResult, line: str, *, is_kept: bool) -> None:
        """The same for a line as text, which is read only where it is logged."""
        logger = log.now()
        is_enabled_for = getattr(type(logger), "is_enabled_for", None)
        if is_enabled_for is None or is_enabled_for(logger, logging.INFO):
            self._log(logger.info, EVENT, json.loads(_whole(line, result.audit)))
        if (calls := this_process().calls) is not None:
            _count(calls, _known({"tool": call.tool_name, **_times(result.audit), **_end(result)}))
        if not is_kept:
            self.miss("Redis refuses it")

    def tell_end(self, answer: Any, parts: PartsOfLine) -> None:
        """The same after `END`, if that has ended the call."""
        if answer[0] != b"ended":
            return
        text, is_kept = answer[2].decode(), bool(answer[3])
        if text:
            self.tell(json.loads(text), is_kept=is_kept)
        else:  # it was sent twice, for its first answer was lost: what ended it stands in its result, until that expires
            ended = _stored_end(answer[1]) if answer[1] else {}
            self.tell(_known(json.loads(f"{parts[0]}}}") | ended))

    def miss(self, reason: str) -> None:
        """Count a line that is not in the stream. Raises nothing."""
        self.missed += 1
        if (calls := this_process().calls) is not None:
            calls.recorder.count(metric_families.AUDIT_MISSED)
        if machine_clock.monotonic() >= self._silent_until:
            self._silent_until = machine_clock.monotonic() + _SILENCE_SECONDS
            self._log(log.now().warning, "audit_not_written", {"reason": reason, "lines": self.missed})

    def _log(self, write: Callable[..., object], event: str, fields: Mapping[str, Any]) -> None:
        """Log an event.

        Fails open: if a program's logging cannot take a name, or is closed, the call's result is worth more.
        """
        try:
            write(event, **fields)
        except Exception:  # noqa: BLE001 - the program's logging raises anything; and it cannot be logged
            self.untold += 1

    def _part_about(self, user_id: str | None, permission: str) -> str:
        said = _known({"user_id": _cut(user_id), "permission": _cut(permission), "signed": self._is_signed})
        return f",{text_of(said)[1:-1]}"

    def _about(self, call: PublishedCall, decisions: Mapping[str, str], *, ts: float) -> AuditLine:
        line: AuditLine = {
            "call_id": call.call_id,
            "tool": call.tool_name,
            "ts": ts,
            "user_id": _cut(call.user_id),
            "permission": _cut(call.caller.permission),
            "signed": self._is_signed,
            "arguments": digest_of(call),
            **_decided(decisions),
        }
        if call.caller.agent is not None:
            line["agent"] = _cut(call.caller.agent)
        if call.terms is not None:
            line["cost"] = call.terms.cost
        if call.replay_of is not None:
            line["replay_of"] = call.replay_of
        return line


def _whole(line: str, seen: Audit) -> str:
    """Return a line as it is kept, of which the parts are there that `FINISH` takes."""
    before, is_short, more = line.partition("\n")
    if not is_short:
        return line
    head, attempts, rest = json_text.dump(seen)[1:-1].partition(',"attempts":')
    return f"{{{head}{before}{attempts}{rest}{more.partition(is_short)[0]}"


def text_of(line: AuditLine) -> str:
    """The line as it is kept: ASCII JSON."""
    try:
        text = to_json(line).decode()
    except ValueError:  # half a surrogate pair
        return _encode(line)
    return text if text.isascii() else _encode(line)  # which takes three times as long


def _part_decided(*decisions: tuple[str, str]) -> str:
    return f',"decisions":{text_of(dict(decisions))}'


def _side_effects(call: PublishedCall, value: Mapping[str, Any]) -> list[str | None] | None:
    """Return the side effects that a `TagResult` names; `None` for any other result, and for a tool with sensitive data."""
    named = value["side_effects"]
    if "message" not in value or not isinstance(named, list) or call.sensitive or call.hides_results:
        return None
    from toolfleet_registry.tags import TagResult  # of those who have tags

    if not value.keys() <= TagResult.model_fields.keys():
        return None
    return [_cut(name) for name in named[:_MOST_SIDE_EFFECTS] if isinstance(name, str)] or None


def _count(calls: CallRecorder, line: AuditLine) -> None:
    module = calls.ended(
        line.get("tool") or "", line.get("outcome", ""), line.get("error_code", ""), line.get("effect_state", "")
    )
    if "duration_ms" in line and "queued_ms" in line:
        run, queued = line["duration_ms"] / 1000, line["queued_ms"] / 1000
        calls.ran(module, run_seconds=run, total_seconds=queued + run)


def _times(seen: Audit) -> AuditLine:
    return {"queued_ms": seen.queued_ms, "duration_ms": seen.duration_ms} if seen.call_id else {}


def _known(line: AuditLine) -> AuditLine:
    if None not in line.values():  # nearly always
        return line
    return {name: value for name, value in line.items() if value is not None}


def _end(result: ToolResult) -> AuditLine:
    end = {"outcome": _outcome(result), "effect_state": result.effect_state}
    return end if result.error_code is None else {**end, "error_code": result.error_code}


def _decided(decisions: Mapping[str, str]) -> AuditLine:
    """The decisions; and the call's conversation, and its user where a profile hides that, which travel among them."""
    ids = {name: _cut(decisions[name]) for name in (USER, CONVERSATION) if name in decisions}
    said = {point: word for point, word in decisions.items() if point not in ids} if ids else decisions
    return {**ids, "decisions": said}


def _refusal(decisions: Mapping[str, str], result: ToolResult) -> dict[str, str]:
    decided = _DECIDED.get(result.error_code or "")
    return {**({decided: "denied"} if decided else {}), **decisions, "published": "no"}


def _outcome(result: ToolResult) -> AuditOutcome:
    if result.success:
        return "success"
    if result.effect_state == "unknown":
        return "unknown"
    return "refused" if result.error_code in _REFUSED else "failed"


def tail_of(result: ToolResult, more: AuditLine | None = None) -> str:
    """The end of the line of a call that ends so: `parts_of_end` has its beginning."""
    return f",{text_of(_known({**(more or {}), **_end(result)}))[1:]}"


def _stored_end(value: bytes) -> AuditLine:
    try:
        return _end(json_text.load(ToolResult, json.loads(value)["result"]))
    except (ValueError, LookupError, TypeError):  # a foreign value is there: no call's end fails for it
        return {}


def _cut(name: str | None) -> str | None:
    """Return the name with a bounded length, and with "?" for lone surrogates, which cannot be encoded."""
    if name is None:
        return None
    name = name[:_LONGEST_NAME]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()
