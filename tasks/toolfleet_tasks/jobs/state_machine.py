"""Computes what follows in a job: one pure function for each event. Knows no clock, no Redis and no chance.

A job goes in rounds: most have one, a recurring one has a round at each of its times. `jitter` is a number from -1 to 1.
"""

from dataclasses import replace
from typing import Any, Literal

from toolfleet_registry.conditions import fulfils, missing_path
from toolfleet_registry.contracts import ErrorCode, ToolResult
from toolfleet_registry.contracts.jobs import JobSpec, Poll
from toolfleet_tasks.jobs.positions import EndedRound, JobPosition, Transition
from toolfleet_tasks.jobs.schedule import next_after

MARGIN_SECONDS = 5.0  # after its deadline, a call without an end is looked for: clocks differ
_JITTER = 0.1
_LONGEST_ID = 200  # characters, of a job's
_MOST_FAULTS = 5  # polls in a row that fail for no reason that passes by itself
_SHORTEST_REST = 1.0  # seconds, before something is tried again that was refused for now
_LONGEST_REST = 3600.0  # of a tool's own estimate
_UNKNOWN_REST = 15.0  # seconds, before an unknown tool is looked for again: it may be starting
_MOST_UNKNOWN = 40  # such tries of a job's first call: ten minutes

# A poll that is refused so is refused for good.
_FOR_GOOD = frozenset(
    {"permission_denied", "invalid_arguments", "blocked_by_gate", "invalid_tool_name", "version_mismatch"}
)
# What passes by itself, as long as nothing was executed.
_PASSING = frozenset({"busy", "rate_limited", "expired", "module_unreachable", "fleet_unavailable"})
# What a module that is being replaced, or that is not up yet, may look like.
_UNKNOWN = frozenset({"unknown_tool", "unknown_module"})
# As `_PASSING`, where the fleet says that the call may be made again: it could not be published or started.
_PASSING_IF_RETRYABLE = frozenset({"timed_out", "internal"})

Step = Literal["start", "poll", "hook", "nothing"]


def first_place(spec: JobSpec, *, now: float, jitter: float) -> JobPosition:
    """Return a new job's position. Raises `ValueError` for a schedule that never comes."""
    if spec.schedule is not None:
        due_at = spec.schedule.at if spec.schedule.cron is None else next_after(spec.schedule, now)
        if due_at is None:
            raise ValueError("The schedule never comes due.")
        return JobPosition(state="waiting", due_at=_at(min(due_at, spec.deadline_at)))
    if spec.start is not None:
        return JobPosition(state="starting", due_at=_at(now))
    if spec.poll is not None:
        until = min(now + spec.poll.max_seconds, spec.deadline_at)
        due_at = min(now + _jittered(spec.poll.interval_seconds, jitter), until)
        return JobPosition(state="waiting", due_at=_at(due_at), poll_until=_at(until))
    if spec.hook is not None:
        return JobPosition(state="waiting", due_at=_at(spec.deadline_at))
    return JobPosition(state="waiting", due_at=_at(now))


def next_step(spec: JobSpec, place: JobPosition) -> Step:
    """Return the step that a waiting job takes when it is due."""
    if spec.start is not None and place.step < 0:
        return "start"
    if spec.hook is not None:
        return "hook"
    return "nothing" if spec.poll is None else "poll"


def next_number(spec: JobSpec, place: JobPosition) -> int:
    """The number of the next step."""
    return 0 if next_step(spec, place) == "start" else max(place.step, 0) + 1


def over_due(spec: JobSpec, place: JobPosition, *, now: float) -> Transition | None:
    """The end of a job that waits, if its time is over."""
    if now >= spec.deadline_at:
        return _over(place, _timed_out(f"its deadline has passed{_missed(place)}"), spec)
    if place.poll_until is not None and now >= place.poll_until and spec.poll is not None:
        text = f"it was polled for {spec.poll.max_seconds:g} s and is not over{_missed(place)}"
        return _end_of_round(spec, place, _timed_out(text), now=now)
    return None


def reminded(spec: JobSpec, place: JobPosition, *, now: float) -> Transition:
    """The time has come, of a job that has nothing to call."""
    place = place.model_copy(update={"step": next_number(spec, place)})
    return _end_of_round(spec, place, EndedRound("completed"), now=now)


def begun(spec: JobSpec, place: JobPosition, *, now: float, call_until: float) -> JobPosition:
    """Return the position before its next call is published, to end by `call_until`."""
    is_start = next_step(spec, place) == "start"
    poll_until = place.poll_until if is_start else _poll_until(spec, place, now=now)
    return JobPosition(
        state="starting" if is_start else "polling",
        step=next_number(spec, place),
        first=place.first,
        faults=place.faults,
        call_until=_at(call_until),
        poll_until=poll_until,
        missing=place.missing,
        runs=place.runs,
    )


def put_off(spec: JobSpec, place: JobPosition, refusal: ToolResult, *, now: float, jitter: float) -> Transition | None:
    """Return the transition when the step after `place` was surely not published; `None` if that counts as the step's end.

    It has no number then: the next attempt is the same step.
    """
    is_start, rest = next_step(spec, place) == "start", _rest(refusal, _SHORTEST_REST)
    is_missed = is_start and is_unknown(refusal) and place.faults < _MOST_UNKNOWN
    if not is_missed and not passes(refusal):
        return None
    until = place.poll_until if is_start else _poll_until(spec, place, now=now)
    seconds = _jittered(_UNKNOWN_REST if is_missed else rest, jitter)
    due_at = min(now + seconds, spec.deadline_at, spec.deadline_at if until is None else until)
    more = {"due_at": _at(due_at), "poll_until": until, "faults": place.faults + is_missed}
    return Transition(place.model_copy(update=more))


def after_start(spec: JobSpec, place: JobPosition, result: ToolResult, *, now: float, jitter: float) -> Transition:
    """Return the transition at the end of a job's first call."""
    if not result.success:
        return _over(place, _failed_as(result, "its first call has failed"), spec)
    if spec.hook is not None:  # until its deadline nothing is done about it
        return Transition(JobPosition(state="waiting", step=place.step, due_at=_at(spec.deadline_at)))
    if spec.poll is None:
        return _over(place, EndedRound("completed", result.result), spec)
    return Transition(_waiting(spec, place, spec.poll, now=now, jitter=jitter))


def after_hook(spec: JobSpec, place: JobPosition, said: EndedRound, *, now: float) -> Transition:
    """Return the transition by a job's hook, also while its first call is under way; after its deadline the job has timed out."""
    return over_due(spec, place, now=now) or _over(place, said, spec)


def failed(spec: JobSpec, place: JobPosition, reason: str, code: ErrorCode = "invalid_arguments") -> Transition:
    """The end of a job that cannot go on."""
    return _over(place, EndedRound("failed", error=f"The job has failed: {reason}", error_code=code), spec)


def after_poll(spec: JobSpec, place: JobPosition, result: ToolResult, *, now: float, jitter: float) -> Transition:
    """Return the transition at the end of a poll."""
    poll = spec.poll
    if poll is None:  # a record that is not the fleet's
        return failed(spec, place, "it has nothing to poll.", "internal")
    if result.success:
        return _after_answer(spec, poll, place, result.result, now=now, jitter=jitter)
    if result.error_code in _FOR_GOOD:
        return _over(place, _failed_as(result, "a poll was refused"), spec)
    if passes(result):
        rest = _rest(result, poll.interval_seconds)
        return Transition(_waiting(spec, place, poll, now=now, jitter=jitter, rest=rest, faults=place.faults))
    is_act = poll.until is None and result.effect_state != "none"  # it was to be done, not asked; perhaps it is
    if is_act or place.faults + 1 >= _MOST_FAULTS:
        how = "its call has failed" if is_act else f"{_MOST_FAULTS} polls in a row have failed"
        return _end_of_round(spec, place, _failed_as(result, how), now=now)
    patience = max(poll.interval_seconds, 4 * _UNKNOWN_REST) if is_unknown(result) else None
    return Transition(_waiting(spec, place, poll, now=now, jitter=jitter, rest=patience, faults=place.faults + 1))


def passes(result: ToolResult) -> bool:
    """Return whether a call has surely done nothing, and was refused for a reason that passes by itself."""
    code = result.error_code
    is_passing = code in _PASSING or (code in _PASSING_IF_RETRYABLE and result.retryable)
    return not result.success and result.effect_state == "none" and is_passing


def is_unknown(result: ToolResult) -> bool:
    """Return whether a call was refused because its tool, or its module, is not known now: it may be there soon."""
    return not result.success and result.effect_state == "none" and result.error_code in _UNKNOWN


def cancelled(place: JobPosition) -> Transition:
    """Return the end requested by its creator. It is not reported."""
    return Transition(JobPosition(state="cancelled", step=place.step, runs=place.runs), is_over=True)


def stopped(place: JobPosition, by: str) -> Transition:
    """Return the end of a job after the job `by` of its workflow has failed. Only the failed one's end is reported."""
    reason = f"The job is cancelled: the job {by[:_LONGEST_ID]!r} of its workflow has failed."
    return replace(cancelled(place), reason=reason)


def _after_answer(
    spec: JobSpec, poll: Poll, place: JobPosition, value: Any, *, now: float, jitter: float
) -> Transition:
    if poll.until is not None and not fulfils(poll.until, value):
        waiting = _waiting(spec, place, poll, now=now, jitter=jitter)
        return Transition(waiting.model_copy(update={"missing": missing_path(poll.until, value)}))
    # Without `until` there is nothing that a result would fail by.
    if poll.until is not None and poll.failed_when is not None and fulfils(poll.failed_when, value):
        text = "The job has failed: the tool says that the work has."
        return _end_of_round(spec, place, EndedRound("failed", value, text, "module_error"), now=now)
    return _end_of_round(spec, place, EndedRound("completed", value), now=now)


def _waiting(  # noqa: PLR0913 - a wait has these sides
    spec: JobSpec,
    place: JobPosition,
    poll: Poll,
    *,
    now: float,
    jitter: float,
    rest: float | None = None,
    faults: int = 0,
) -> JobPosition:
    """Return the position until the next poll: after the interval, or `rest`; and not beyond the end of polling."""
    until = place.poll_until if place.poll_until is not None else _at(now + poll.max_seconds)
    seconds = _interval(poll, place.step - place.first) if rest is None else rest
    due_at = min(now + _jittered(seconds, jitter), until, spec.deadline_at)
    return JobPosition(
        state="waiting",
        step=place.step,
        first=place.first,
        faults=faults,
        due_at=_at(due_at),
        poll_until=until,
        runs=place.runs,
    )


def _poll_until(spec: JobSpec, place: JobPosition, *, now: float) -> float | None:
    """Return the end of this round's polling, which begins with its first attempt."""
    if place.poll_until is not None or spec.poll is None:
        return place.poll_until
    return _at(max(now, place.due_at or 0) + spec.poll.max_seconds)


def _after_round(spec: JobSpec, place: JobPosition, *, now: float) -> float:
    """Return the time from which the next round counts.

    A round may have started, and ended, by a clock that is behind: its own time is over.
    """
    began_at = (
        place.due_at or 0 if place.poll_until is None or spec.poll is None else place.poll_until - spec.poll.max_seconds
    )
    return max(now, _at(began_at))


def _end_of_round(spec: JobSpec, place: JobPosition, ended: EndedRound, *, now: float) -> Transition:
    if spec.schedule is None or spec.schedule.cron is None:
        return _over(place, ended, spec)
    if (most := spec.schedule.max_runs) is not None:  # else older workers, which count nothing, go on with the job
        place = place.model_copy(update={"runs": place.runs + 1})
        if place.runs >= most:
            last = JobPosition(state="completed", step=place.step, runs=place.runs)
            return Transition(last, ended, is_over=True, round_step=place.step)
    try:
        due_at = next_after(spec.schedule, _after_round(spec, place, now=now))
    except ValueError:  # a zone that this machine does not know
        due_at = None
    if due_at is None or due_at >= spec.deadline_at:
        return _over(place, ended, spec)
    waiting = JobPosition(
        state="waiting", step=place.step, first=max(place.step, 0), due_at=_at(due_at), runs=place.runs
    )
    return Transition(waiting, ended, round_step=place.step)


def _over(place: JobPosition, ended: EndedRound, spec: JobSpec) -> Transition:
    recurs = spec.schedule is not None and spec.schedule.cron is not None
    # A round that has been told of keeps its news; what ends between two rounds has a number of its own.
    number = place.step if place.step > place.first else place.step + 1
    last = JobPosition(state=ended.state, step=place.step, runs=place.runs)
    return Transition(last, ended, is_over=True, round_step=max(number, 0) if recurs else None)


def _interval(poll: Poll, made: int) -> float:
    """The wait after so many polls of a round."""
    try:
        grown = poll.interval_seconds * poll.backoff ** max(made - 1, 0)
    except OverflowError:
        return poll.longest_interval_seconds
    # One whose interval is longer than the longest has asked for that.
    return min(grown, max(poll.longest_interval_seconds, poll.interval_seconds))


def _rest(result: ToolResult, otherwise: float) -> float:
    retry_after = result.retry_after_seconds
    return otherwise if retry_after is None else min(max(retry_after, _SHORTEST_REST), _LONGEST_REST)


def _failed_as(result: ToolResult, how: str) -> EndedRound:
    said = " ".join(filter(None, (result.error, result.hint)))
    return EndedRound("failed", error=f"The job has failed: {how}: {said}", error_code=result.error_code)


def _missed(place: JobPosition) -> str:
    return "" if place.missing is None else f"; its last poll's result had nothing at {place.missing!r}"


def _timed_out(why: str) -> EndedRound:
    return EndedRound("timed_out", error=f"The job has timed out: {why}.", error_code="timed_out")


def _jittered(seconds: float, jitter: float) -> float:
    return seconds * (1 + _JITTER * jitter)


def _at(moment: float) -> float:
    """A millisecond is enough, and shorter to keep."""
    return round(moment, 3)
