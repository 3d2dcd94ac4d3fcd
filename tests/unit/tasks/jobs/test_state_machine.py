"""What follows in a job, without a clock: each rule, and many lives of jobs against a model that keeps no more than it must."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import HookSpec, JobSpec, Poll, Schedule
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.state_machine import EndedRound, JobPosition, Transition
from toolfleet_tasks.messages import fleet_results

NOW = 1_800_000_000.0


def make_spec(**fields: Any) -> JobSpec:
    wanted: dict[str, Any] = {
        "job_id": "j",
        "caller": Caller(),
        "start": ToolCall(tool_name="works.begin"),
        "poll": Poll(tool_name="works.state", interval_seconds=10, backoff=2, longest_interval_seconds=60),
        "created_at": NOW,
        "deadline_at": NOW + 10_000,
        **fields,
    }
    return JobSpec(**wanted)


def ok(value: Any) -> ToolResult:
    return ToolResult.ok("works.state", value)


def refused(code: Any, *, state: Any = "none", after: float | None = None, retryable: bool = False) -> ToolResult:
    result = ToolResult.failed("works.state", code, "No.", effect_state=state, retryable=retryable)
    return result.model_copy(update={"retry_after_seconds": after})


def polled(spec: JobSpec, result: ToolResult, *, place: JobPosition | None = None, now: float = NOW) -> Transition:
    waiting = place or JobPosition(state="waiting", step=0, due_at=now, poll_until=now + 5_000)
    place = state_machine.begun(spec, waiting, now=now, call_until=now + 90)
    return state_machine.after_poll(spec, place, result, now=now, jitter=0)


def test_a_start_is_made_at_once_and_the_first_poll_after_an_interval() -> None:
    """The first call is step 0; its success leads to the first poll one interval later."""
    spec = make_spec()
    place = state_machine.first_place(spec, now=NOW, jitter=1)
    assert (place.state, place.due_at, state_machine.next_step(spec, place)) == ("starting", NOW, "start")

    begun = state_machine.begun(spec, place, now=NOW, call_until=NOW + 90)
    move = state_machine.after_start(spec, begun, ok({"id": 1}), now=NOW + 5, jitter=0)
    assert (begun.step, move.place.state, move.place.due_at) == (0, "waiting", NOW + 15)
    assert state_machine.next_number(spec, move.place) == 1


@pytest.mark.parametrize(
    "result", [refused("busy"), refused("outcome_unknown", state="unknown"), refused("module_error")]
)
def test_a_start_that_failed_is_the_jobs_end(result: ToolResult) -> None:
    """It is made once: whatever else it comes to, the job has failed with that error."""
    spec = make_spec()
    begun = state_machine.begun(spec, JobPosition(state="starting"), now=NOW, call_until=NOW + 90)
    move = state_machine.after_start(spec, begun, result, now=NOW, jitter=0)

    assert move.is_over
    assert move.ended is not None
    assert (move.ended.state, move.ended.error_code) == ("failed", result.error_code)


def test_a_mistyped_path_is_named_when_time_is_over() -> None:
    """A condition that asks for what no result has is never fulfilled: the job's end says where there was nothing."""
    place = polled(make_spec(), ok({"state": "running"})).place
    over = state_machine.over_due(make_spec(), place, now=NOW + 5_001)

    assert over is not None
    assert over.ended is not None
    assert str(over.ended.error).endswith("is not over; its last poll's result had nothing at 'status'.")
    assert state_machine.begun(make_spec(), place, now=NOW, call_until=NOW + 9).missing == "status"  # it is said once
    assert polled(make_spec(), ok({"status": "running"}), place=place).place.missing is None


def test_no_job_waits_beyond_its_deadline() -> None:
    """Also one that recurs, where clocks differ and its first time is later: it ends then, and not at that time."""
    spec = make_spec(start=None, schedule=Schedule(cron="0 0 29 2 *"), deadline_at=NOW + 60)

    assert state_machine.first_place(spec, now=NOW, jitter=0).due_at == NOW + 60


def test_waits_grow_up_to_the_longest_and_are_spread() -> None:
    """Each wait is `backoff` times the one before; all are a tenth longer or shorter by chance."""
    spec, waits = make_spec(), []
    place = JobPosition(state="waiting", step=0, due_at=NOW, poll_until=NOW + 5_000)
    for _ in range(5):
        place = polled(spec, ok({"status": "running"}), place=place).place
        waits.append(round((place.due_at or 0) - NOW, 3))
    assert waits == [10, 20, 40, 60, 60]

    one = state_machine.after_poll(spec, place, ok({}), now=NOW, jitter=-1).place.due_at
    assert one == NOW + 54


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ({"status": "completed"}, "completed"),
        ({"status": "failed"}, "failed"),
        ({"status": "running"}, None),
        (7, None),
    ],
)
def test_a_polls_result_ends_the_job_or_not(value: Any, state: str | None) -> None:
    """`until` says whether the work is over, `failed_when` whether it has failed."""
    move = polled(make_spec(), ok(value))

    assert (move.ended.state if move.ended else None) == state
    assert move.is_over is (state is not None)


def test_without_a_condition_the_first_success_completes() -> None:
    """Whatever it says."""
    spec = make_spec(poll=Poll(tool_name="works.state", until=None))

    assert polled(spec, ok({"status": "failed"})).place.state == "completed"


@pytest.mark.parametrize("code", ["permission_denied", "invalid_arguments", "blocked_by_gate"])
def test_a_poll_that_is_refused_for_good_ends_the_job(code: str) -> None:
    """Another poll would be refused as well; a recurring job ends, too."""
    for spec in (make_spec(), make_spec(start=None, schedule=Schedule(cron="0 * * * *"))):
        move = polled(spec, refused(code))
        assert move.is_over
        assert move.place.state == "failed"


@pytest.mark.parametrize(
    "result",
    [
        refused("busy", after=40),
        refused("rate_limited", after=40),
        refused("expired", after=40),
        refused("module_unreachable", after=40),
        refused("internal", after=40, retryable=True),  # the queue could not be reached
    ],
)
def test_what_passes_by_itself_is_waited_for_and_not_counted(result: ToolResult) -> None:
    """A module that is away or busy for days does not end a job; it is asked again when it says so."""
    spec = make_spec()
    place = JobPosition(state="waiting", step=0, due_at=NOW, poll_until=NOW + 5_000)
    for _ in range(20):
        move = polled(spec, result, place=place)
        place = move.place
        assert (place.state, place.faults, place.due_at) == ("waiting", 0, NOW + 40)


@pytest.mark.parametrize(
    "result",
    [
        refused("unknown_tool"),
        refused("module_error", state="unknown"),
        refused("busy", state="unknown"),
        refused("timed_out"),
    ],
)
def test_five_faults_in_a_row_end_the_job(result: ToolResult) -> None:
    """A success between them begins the count anew."""
    spec = make_spec()
    place = JobPosition(state="waiting", step=0, due_at=NOW, poll_until=NOW + 5_000)
    for _ in range(4):
        place = polled(spec, result, place=place).place
    place = polled(spec, ok({}), place=place).place
    for _ in range(4):
        move = polled(spec, result, place=place)
        assert not move.is_over
        place = move.place

    assert polled(spec, result, place=place).place.state == "failed"


@pytest.mark.parametrize("schedule", [None, Schedule(cron="*/7 * * * *")])
def test_a_call_that_is_made_for_its_effect_is_not_repeated_when_it_may_have_had_it(schedule: Schedule | None) -> None:
    """Without `until` nothing is polled: what has failed and may have been done ends its round; what has not begun is tried again."""
    spec = make_spec(poll=Poll(tool_name="works.send", until=None), schedule=schedule)
    place = JobPosition(state="waiting", step=0, due_at=NOW, poll_until=NOW + 5_000)

    move = polled(spec, refused("module_error", state="unknown"), place=place)
    again = polled(spec, refused("unknown_tool"), place=place)

    assert (move.ended is not None and move.ended.state, move.is_over) == ("failed", schedule is None)
    assert (again.ended, again.place.faults) == (None, 1)


def test_a_job_times_out_at_its_deadline_and_when_it_was_polled_for_too_long() -> None:
    """And no wait goes beyond either."""
    spec = make_spec(poll=Poll(tool_name="works.state", interval_seconds=100, max_seconds=150))
    place = polled(spec, ok({}), place=JobPosition(state="waiting", step=0, due_at=NOW)).place
    place = polled(spec, ok({}), place=place, now=NOW + 100).place
    assert place.due_at == NOW + 150
    over = state_machine.over_due(spec, place, now=NOW + 150)
    assert over is not None
    assert over.place.state == "timed_out"

    late = state_machine.over_due(make_spec(), JobPosition(state="waiting", due_at=NOW), now=NOW + 10_000)
    assert late is not None
    assert late.place.state == "timed_out"
    assert state_machine.over_due(make_spec(), JobPosition(state="waiting", due_at=NOW), now=NOW + 9_999) is None


def test_a_recurring_job_ends_round_by_round() -> None:
    """Each round's end has its own number; the last one before the deadline ends the job."""
    spec = make_spec(start=None, schedule=Schedule(cron="0 * * * *"), deadline_at=NOW + 3 * 3600 + 1)
    place, now, poll_values = state_machine.first_place(spec, now=NOW, jitter=0), NOW, list[Any]()
    while True:
        assert place.due_at is not None
        now = place.due_at
        move = polled(spec, ok({"status": "completed"}), place=place, now=now)
        poll_values.append((now - NOW, move.round_step, move.ended.state if move.ended else None))
        if move.is_over:
            break
        place = move.place

    assert [number for _, number, _ in poll_values] == [1, 2, 3]
    assert {state for _, _, state in poll_values} == {"completed"}
    assert now < spec.deadline_at


def test_a_reminder_has_nothing_to_call() -> None:
    """It completes when its time comes, once; a recurring one each time."""
    once = make_spec(start=None, poll=None, schedule=Schedule(at=NOW + 60))
    place = state_machine.first_place(once, now=NOW, jitter=1)
    assert place.due_at == NOW + 60
    assert state_machine.next_step(once, place) == "nothing"
    assert state_machine.reminded(once, place, now=NOW + 60).is_over

    often = make_spec(start=None, poll=None, schedule=Schedule(cron="*/5 * * * *"))
    first = state_machine.reminded(often, state_machine.first_place(often, now=NOW, jitter=0), now=NOW + 300)
    second = state_machine.reminded(often, first.place, now=NOW + 600)
    assert (first.is_over, first.round_step, second.round_step) == (False, 1, 2)


def test_a_round_that_ends_before_its_time_by_a_clock_that_is_behind_is_over_all_the_same() -> None:
    """The next one is at the time after it, and not at its own once more."""
    polling = make_spec(start=None, schedule=Schedule(cron="*/5 * * * *"))
    place = state_machine.first_place(polling, now=NOW, jitter=0)
    assert place.due_at is not None
    begun = state_machine.begun(polling, place, now=place.due_at - 0.5, call_until=NOW + 400)
    move = state_machine.after_poll(polling, begun, ok({"status": "completed"}), now=place.due_at - 0.25, jitter=0)
    assert move.place.due_at == place.due_at + 300

    reminding = make_spec(start=None, poll=None, schedule=Schedule(cron="*/5 * * * *"))
    place = state_machine.first_place(reminding, now=NOW, jitter=0)
    assert place.due_at is not None
    assert state_machine.reminded(reminding, place, now=place.due_at - 0.5).place.due_at == place.due_at + 300


def test_a_step_that_was_surely_not_published_keeps_its_number() -> None:
    """A refusal that passes puts it off, also the first call; any other counts as the step's end."""
    spec, starting = make_spec(), JobPosition(state="starting", due_at=NOW)
    off = state_machine.put_off(spec, starting, fleet_results.not_published("works.begin", "away"), now=NOW, jitter=0)
    assert off is not None
    assert (off.place.step, off.place.state, off.place.due_at) == (-1, "starting", NOW + 1)
    assert state_machine.put_off(spec, starting, refused("conflict"), now=NOW, jitter=0) is None


def test_a_step_that_is_put_off_is_not_put_off_beyond_the_end_of_polling() -> None:
    """The round has begun with its first try, also where nothing was published."""
    spec = make_spec(start=None, poll=Poll(tool_name="works.state", max_seconds=60))
    place = state_machine.first_place(spec, now=NOW, jitter=0)
    late = state_machine.put_off(spec, place, refused("rate_limited", after=3_000), now=NOW + 30, jitter=0)
    assert late is not None
    assert late.place.due_at == NOW + 60

    planned = make_spec(start=None, poll=Poll(tool_name="works.state", max_seconds=60), schedule=Schedule(at=NOW + 5))
    place = state_machine.first_place(planned, now=NOW, jitter=0)
    off = state_machine.put_off(planned, place, refused("busy", after=10), now=NOW + 5, jitter=0)
    assert off is not None
    assert (off.place.due_at, off.place.poll_until) == (NOW + 15, NOW + 65)
    assert state_machine.over_due(planned, off.place, now=NOW + 65) is not None


def test_a_start_whose_tool_is_not_known_just_now_is_tried_for_some_minutes() -> None:
    """Its module may be starting; one that is refused for another reason, or for too long, is the job's end."""
    spec, place, now, tries = make_spec(), JobPosition(state="starting", due_at=NOW), NOW, 0
    while (off := state_machine.put_off(spec, place, refused("unknown_tool"), now=now, jitter=0)) is not None:
        assert off.place.due_at is not None
        place, now, tries = off.place, off.place.due_at, tries + 1
        assert (place.state, place.step) == ("starting", -1)

    assert (tries, now) == (40, NOW + 600)
    assert (
        state_machine.put_off(spec, JobPosition(state="starting"), refused("invalid_arguments"), now=NOW, jitter=0)
        is None
    )


def test_a_poll_whose_tool_is_not_known_just_now_is_made_again_after_a_minute() -> None:
    """However short its interval is: a fleet that restarts ends no job."""
    move = polled(make_spec(poll=Poll(tool_name="works.state", interval_seconds=1)), refused("unknown_module"))

    assert (move.is_over, move.place.faults, move.place.due_at) == (False, 1, NOW + 60)


RESULTS = st.sampled_from([
    ok({"status": "running"}), ok({"status": "completed"}), ok({"status": "failed"}), ok(None), refused("busy"),
    refused("busy", after=7), refused("busy", state="unknown"), refused("unknown_tool"), refused("outcome_unknown", state="unknown"),
    refused("permission_denied"), refused("cancelled"), fleet_results.not_published("t", "x"),
])  # fmt: skip


@given(
    results=st.lists(st.tuples(RESULTS, st.floats(0, 120), st.floats(-1, 1)), max_size=40),
    backoff=st.floats(1, 10),
    max_seconds=st.floats(1, 2_000),
    cron=st.booleans(),
)
def test_every_life_of_a_job_goes_by_the_rules(
    results: list[tuple[ToolResult, float, float]], backoff: float, max_seconds: float, cron: bool
) -> None:
    """Steps count up by one; nothing is due after an end; a job ends by its conditions, its faults or its time alone."""
    poll = Poll(tool_name="t.t", interval_seconds=5, backoff=backoff, max_seconds=max_seconds)
    spec = make_spec(start=None, poll=poll, schedule=Schedule(cron="*/7 * * * *") if cron else None)
    place, now, faults, number = state_machine.first_place(spec, now=NOW, jitter=0), NOW, 0, 0
    for result, seconds, jitter in results:
        assert place.due_at is not None
        assert place.due_at <= min(spec.deadline_at, place.poll_until or spec.deadline_at)
        now = max(now, place.due_at)  # a poll may have run for longer than there was to poll
        move = state_machine.over_due(spec, place, now=now)
        if move is None:
            begun = state_machine.begun(spec, place, now=now, call_until=now + 130)
            number += 1
            assert begun.step == number
            now += seconds
            move = state_machine.after_poll(spec, begun, result, now=now, jitter=jitter)
            passing = state_machine.passes(result)
            faults = 0 if result.success else faults if passing else faults + 1
            value = result.result if isinstance(result.result, dict) else {}
            ends = (
                value.get("status") in {"completed", "failed"}
                or result.error_code == "permission_denied"
                or faults == 5
            )
            assert (move.ended is not None) is ends
        else:
            assert now >= spec.deadline_at or now >= (place.poll_until or 0)
        if move.is_over:
            assert move.place.state in {"completed", "failed", "timed_out"}
            assert move.place.due_at is None
            return
        if move.ended is not None:
            assert cron
            faults = 0
        place = move.place


def hooked(**fields: Any) -> JobSpec:
    return make_spec(poll=None, hook=HookSpec(secrets=("whsec_" + "b3ds" * 8,)), **fields)


def test_a_job_with_a_hook_waits_until_its_deadline() -> None:
    """After its start's success, or at once without one, nothing is due before; then it has timed out."""
    begun = state_machine.begun(hooked(), JobPosition(state="starting"), now=NOW, call_until=NOW + 90)
    started = state_machine.after_start(hooked(), begun, ok(1), now=NOW, jitter=0).place
    without = state_machine.first_place(hooked(start=None), now=NOW, jitter=0)

    for spec, place in ((hooked(), started), (hooked(start=None), without)):
        assert (place.state, place.due_at) == ("waiting", spec.deadline_at)
        assert state_machine.next_step(spec, place) == "hook"
        assert state_machine.over_due(spec, place, now=spec.deadline_at - 0.001) is None
        over = state_machine.over_due(spec, place, now=spec.deadline_at)
        assert over is not None
        assert over.place.state == "timed_out"


@pytest.mark.parametrize("state", ["starting", "waiting"])
def test_a_hook_ends_a_job_in_each_state(state: Any) -> None:
    """Also while its first call is under way; after the deadline it has timed out, whatever the hook says."""
    place, said = JobPosition(state=state, step=0), EndedRound("failed", error="No.", error_code="module_error")
    in_time = state_machine.after_hook(hooked(), place, said, now=NOW)
    late = state_machine.after_hook(hooked(), place, said, now=NOW + 10_000)

    assert (in_time.is_over, in_time.place.state, in_time.ended) == (True, "failed", said)
    assert (late.is_over, late.place.state) == (True, "timed_out")
