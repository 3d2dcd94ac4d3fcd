"""Computes the next state of a job: one pure function for each event, and the due times of a schedule.

Five fields, as in `crontab(5)`: minute, hour, day of the month, month, day of the week. If both days are restricted,
either is enough. A time that the clock skips comes right after the change; one that it shows twice comes once, unless
the hour is `*` or `*/n`: a job for the whole day also runs in the hour that is repeated.

A job goes in rounds: most have one, a recurring one has a round at each of its times. `jitter` is a number from -1 to 1.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from toolfleet_registry.conditions import fulfils, missing_path
from toolfleet_registry.contracts import ErrorCode, Message, Since, ToolResult
from toolfleet_registry.contracts.jobs import JobSpec, JobState, Poll, Schedule
from toolfleet_registry.system import fleet_clock

Outcome = Literal["completed", "failed", "timed_out"]

LONGEST_SECONDS = 366 * 86_400
"""No job may last longer: one of once a year comes due, and one that was forgotten ends."""

_LATE_SECONDS = 60.0  # that `at` may lie in the past: a model's request has been on its way
_LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()  # every zone can still write it down
_FIELDS = 5
# Not croniter's other letters: "r" is another time at every look. "l" is the last day of a month.
_WORD = re.compile("jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat|l")
_FORM = "its fields are minute, hour, day of the month, month and day of the week, as in '*/15 9-17 * * mon-fri'"
_LETTERS = re.compile(r"[a-z]+")

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


class JobPosition(Message):
    """The position of a job.

    Written down, it is also compared before a change: of two workers that move a job only one succeeds.

    `step`: the call that is under way, or was the last (-1: none yet); `first`: the step before this round's first
    poll; `faults`: polls in a row that have failed; `due_at`: the next time to act on a waiting job; `call_until`: the
    deadline of the call that is under way; `call_id`: that call's, if it is another client's; `poll_until`: the end of
    this round's polling; `missing`: the part of its condition that the last answer lacked; `by`: the id of the change;
    `runs`: the number of ended rounds, of a job that counts them. Times are by Redis's clock.
    """

    state: JobState
    step: int = -1
    first: int = 0
    faults: int = Field(default=0, ge=0)
    due_at: float | None = None
    call_until: float | None = None
    call_id: str | None = None
    poll_until: float | None = None
    missing: str | None = None
    by: str = ""
    runs: Annotated[int, Field(ge=0), Since(2)] = 0

    @property
    def is_under_way(self) -> bool:
        """Whether one of its calls is under way."""
        return self.state in {"starting", "polling"} and self.call_until is not None


@dataclass(frozen=True, slots=True)
class EndedRound:
    """The end of a round, or of the job. `shown`: what a model sees of a large result."""

    state: Outcome
    result: Any = None
    error: str | None = None
    error_code: ErrorCode | None = None
    shown: Any = None


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state: the job's new `place`, and its end to report. `is_over`: nothing comes after it.

    `round_step` names the round that ended, of a job with several. `reason`: the reason of an end that is reported to
    no one.
    """

    place: JobPosition
    ended: EndedRound | None = None
    is_over: bool = False
    round_step: int | None = None
    reason: str | None = None


def check_schedule(schedule: Schedule) -> None:
    """Raise `ValueError`, in one sentence, for a schedule that is empty, cannot be read, is over, or never comes."""
    if (schedule.at is None) == (schedule.cron is None):
        raise ValueError("A schedule has one of `at`, `delay_seconds` and `cron`.")
    if schedule.at is not None:
        _check_at(schedule.at)
    elif next_after(schedule, fleet_clock.now()) is None:
        raise ValueError(f"The cron expression {schedule.cron!r} never comes due.")


def next_after(schedule: Schedule, after: float) -> float | None:
    """Return the first due time later than `after`; `None` if there is none. Raises `ValueError` as above."""
    if schedule.cron is None:
        return schedule.at if schedule.at is not None and schedule.at > after else None
    from croniter import CroniterError, croniter  # most processes have no such schedule

    text, zone = _expression(schedule.cron), _zone(schedule.timezone)
    is_all_day = text.split()[1].startswith("*")
    try:
        times = croniter(text, datetime.fromtimestamp(after, zone), ret_type=datetime)
        return next((at for at in _dates(times, is_all_day=is_all_day) if at > after), None)
    except CroniterError as exc:
        raise ValueError(f"The cron expression {schedule.cron!r} cannot be read: {_FORM}.") from exc


def _dates(times: Any, *, is_all_day: bool) -> Iterator[float]:
    """Yield croniter's times, each once."""
    from croniter import CroniterBadDateError

    while True:
        try:
            found: datetime = times.get_next()
        except CroniterBadDateError:  # within 50 years
            return
        if is_all_day or not found.fold:
            yield found.timestamp()


def _check_at(at: float) -> None:
    if not math.isfinite(at) or at > _LAST:
        raise ValueError("`at` is no time that a calendar has.")
    if at < fleet_clock.now() - _LATE_SECONDS:
        raise ValueError(f"`at` is in the past: it is {fleet_clock.utc_now().isoformat(timespec='seconds')} now.")


def _expression(text: str) -> str:
    fields = text.lower().split()
    if len(fields) != _FIELDS:
        raise ValueError(f"A cron expression has five fields, and {text!r} has {len(fields)}.")
    for word in _LETTERS.findall(" ".join(fields)):
        if not _WORD.fullmatch(word):
            raise ValueError(f"The cron expression {text!r} cannot be read: {word!r} is no month and no day; {_FORM}.")
    return " ".join(fields)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:  # unknown, no name, a folder of zones
        raise ValueError(f"{name!r} is no time zone: give an IANA name such as 'Europe/Berlin'.") from exc


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
    """Return the number of the next step."""
    return 0 if next_step(spec, place) == "start" else max(place.step, 0) + 1


def over_due(spec: JobSpec, place: JobPosition, *, now: float) -> Transition | None:
    """Return the end of a waiting job that has run out of time."""
    if now >= spec.deadline_at:
        return _over(place, _timed_out(f"its deadline has passed{_missed(place)}"), spec)
    if place.poll_until is not None and now >= place.poll_until and spec.poll is not None:
        text = f"it was polled for {spec.poll.max_seconds:g} s and is not over{_missed(place)}"
        return _end_of_round(spec, place, _timed_out(text), now=now)
    return None


def reminded(spec: JobSpec, place: JobPosition, *, now: float) -> Transition:
    """Return the transition of a due job without calls."""
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
    """Return the end that the job's creator has asked for. It is not reported."""
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


def _waiting(
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
    """Return the wait after so many polls of a round."""
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
    """Return the time rounded to a millisecond, which is enough, and shorter to store."""
    return round(moment, 3)
