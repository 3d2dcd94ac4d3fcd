"""Validates a job before anything of it is done: the fault in one sentence."""

import math
from collections.abc import Iterator

from toolfleet_registry.conditions import FROM, check_condition, check_filling, takes_from_start
from toolfleet_registry.config.job_settings import secret_fault
from toolfleet_registry.contracts import ToolCall
from toolfleet_registry.contracts.jobs import HookSpec, JobSpec, Poll
from toolfleet_registry.policy.identities import LONGEST, fault_in_version
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.jobs.schedule import check_schedule, next_after
from toolfleet_tasks.messages import json_text

_MOST_REQUESTS = 10
_LONGEST_ID = 200  # characters
_MOST_CHARACTERS = 256_000  # of the whole job, as JSON: it waits in Redis's memory


def fault_in(spec: JobSpec, settings: Settings) -> str | None:
    """Return why the job cannot be made, or `None`.

    Does not check whether its tools exist and its creator may call them.
    """
    try:
        _check(spec, settings)
    except (ValueError, RecursionError) as exc:
        return f"The job is refused: {str(exc).partition(chr(10))[0]}"
    return None


def steps_of(spec: JobSpec) -> Iterator[ToolCall]:
    """The calls that a job may make: its start's, its poll's, and those of its end."""
    if spec.start is not None:
        yield spec.start
    if spec.poll is not None:
        yield spec.poll.call_with(spec.poll.arguments)
    yield from (request for request in spec.on_complete if isinstance(request, ToolCall))


def may_be_filled(call: ToolCall) -> bool:
    """Return whether the call's arguments are unknown before the job has started: a poll's may be."""
    return isinstance(call.arguments, dict) and takes_from_start(call.arguments)


def _check(spec: JobSpec, settings: Settings) -> None:
    if not spec.job_id or len(spec.job_id) > _LONGEST_ID:
        raise ValueError(f"Its id has 1 to {_LONGEST_ID} characters.")
    for name, said in spec.conversation:
        if said is not None and len(said) > LONGEST:
            raise ValueError(f"The `{name}` of its conversation has more than {LONGEST} characters.")
    _check_calls(spec)
    _check_times(spec, settings)
    if spec.poll is not None:
        _check_poll(spec.poll, settings, has_start=spec.start is not None)
    if spec.hook is not None:
        _check_hook(spec, spec.hook)
    _check_ends(spec, settings)
    if len(json_text.dump(spec)) > _MOST_CHARACTERS:
        raise ValueError(f"It has more than {_MOST_CHARACTERS:,} characters as JSON.")


def _check_calls(spec: JobSpec) -> None:
    if spec.user_id is None and any(call.user_id is not None for call in steps_of(spec)):
        raise ValueError("A call of it has a `user_id` and its caller has none: nobody could look at it, or cancel it.")
    for call in steps_of(spec):  # also of one whose arguments are unknown yet, which is judged when it is made
        if fault := fault_in_version(call.tool_version):
            raise ValueError(fault)
    ends = [request for request in spec.on_complete if isinstance(request, ToolCall)]
    if any(map(may_be_filled, ends if spec.start is None else [spec.start, *ends])):
        raise ValueError(
            f"{FROM!r} stands for a value of the start's result, which only its poll's arguments can have."
        )


def _check_times(spec: JobSpec, settings: Settings) -> None:
    seconds, longest = spec.deadline_at - spec.created_at, settings.max_job_seconds
    if spec.schedule is not None:
        check_schedule(spec.schedule)
        if spec.schedule.at is not None and spec.schedule.at > fleet_clock.now() + longest:
            raise ValueError(f"It begins more than {longest} s ahead (TOOLFLEET_MAX_JOB_SECONDS).")
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError("Its deadline must lie in the future: `deadline` is a number of seconds, above 0.")
    if seconds > longest * 1.001:  # clocks differ, and floats round
        raise ValueError(f"Its deadline is more than {longest} s ahead (TOOLFLEET_MAX_JOB_SECONDS).")
    if spec.schedule is None:
        if spec.start is None and spec.poll is None and spec.hook is None:
            raise ValueError("It needs a `start`, a `poll`, a `hook` or a `schedule`.")
        return
    if spec.schedule.cron is not None and spec.start is not None:
        raise ValueError("With a cron schedule give the call as `poll`, with `until` null: `start` is made once.")
    first_at = spec.schedule.at if spec.schedule.cron is None else next_after(spec.schedule, fleet_clock.now())
    if first_at is not None and first_at >= fleet_clock.now() + seconds:
        raise ValueError("Its schedule begins after its deadline.")


def _check_poll(poll: Poll, settings: Settings, *, has_start: bool) -> None:
    if poll.interval_seconds < settings.shortest_poll_seconds:
        shortest = settings.shortest_poll_seconds
        raise ValueError(f"`interval_seconds` must be at least {shortest:g} (TOOLFLEET_SHORTEST_POLL_SECONDS).")
    for condition in (poll.until, poll.failed_when):
        if condition is not None:
            check_condition(condition)
    check_filling(poll.arguments)
    if not has_start and takes_from_start(poll.arguments):
        raise ValueError("Its poll takes arguments from the start's result, and it has no `start`.")


def _check_hook(spec: JobSpec, hook: HookSpec) -> None:
    if spec.poll is not None or spec.schedule is not None:
        raise ValueError("With a `hook` it has neither `poll` nor `schedule`: the hook's request ends it.")
    for secret in hook.secrets:
        if (fault := secret_fault(secret)) is not None:
            raise ValueError(f"A secret of its hook {fault}.")


def _check_ends(spec: JobSpec, settings: Settings) -> None:
    if len(spec.on_complete) > _MOST_REQUESTS:
        raise ValueError(f"`on_complete` has at most {_MOST_REQUESTS} entries.")
    if not spec.on_complete:
        raise ValueError("`on_complete` is empty: nobody would hear of its end.")
    is_announced = any(not isinstance(request, ToolCall) for request in spec.on_complete)
    if is_announced and settings.core_url is None and spec.conversation.conversation_id is None:
        raise ValueError(
            "Nobody would hear of its end: it needs a `conversation` with an id, or the fleet a core (TOOLFLEET_CORE_URL)."
        )
