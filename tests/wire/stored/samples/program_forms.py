"""Defines samples of programs' records: where a program is, the state before its next step, and how it ended."""

from toolfleet_registry.contracts.programs import ProgramCall
from toolfleet_tasks.programs import ProgramEnd, ProgramPosition, ProgramState, WaitingCall
from wire.stored.samples.forms import StoredForm, message_form, sealing
from wire.stored.samples.job_forms import AT

_ID = "program-call-1"
_MADE = (
    ProgramCall(number=1, tool_name="works.begin", call_id=f"{_ID}.1", state="failed", error_code="module_error"),
    ProgramCall(number=2, tool_name="works.state", call_id=f"{_ID}.2", state="waiting"),
)
_WAITING = WaitingCall(
    number=2,
    monty_id=5,
    tool_name="works.state",
    arguments={"text": "tu-whit ✓"},
    until=AT + 200,
    returns_unknown=True,
    server="0a1b2c3d 4e5f",
)
_POSITION = ProgramPosition(
    state="waiting",
    step=2,
    first=1,
    faults=1,
    due_at=AT,
    call_id="call-1",
    poll_until=AT + 900,
    missing="status",
    call_until=AT + 200,
    by="0a1b2c3d",
    waits=(2,),
    calls=2,
    detached=True,
    hides=True,
    is_cancelled=True,
    tries=2,
)
_STATE = ProgramState(
    program=_ID,
    step=2,
    caller="0" * 64,
    source="1" * 64,
    format=14,
    snapshot="TU9OVFkADgA=",
    waiting=(_WAITING,),
    made=_MADE,
)
_END = ProgramEnd(ended_at=AT, result={"rows": [1, None]}, error="It failed.", error_code="module_error", calls=_MADE)

PROGRAM_FORMS: tuple[StoredForm, ...] = (
    message_form("program position", {"plain": _POSITION, "filled": _POSITION.model_copy(update={"runs": 2})}),
    message_form("program state", {"plain": _STATE}, seal=sealing("program")),
    message_form(
        "program end", {"plain": _END, "filled": _END.model_copy(update={"delivery": "msg-1", "digest": "2" * 64})}
    ),
)
