"""Hides personal data in the arguments of a job's calls before the job is kept, as its maker's agent's profile says."""

from toolfleet_registry.contracts import ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import JobRefused, JobSpec
from toolfleet_tasks.calls.prepare import CallPreparation


async def without_personal_data(spec: JobSpec, preparation: CallPreparation) -> JobSpec:
    """The job with what its tools may be told. Raises `JobRefused` where the profile blocks such data."""
    if not preparation.has_profile(spec.caller):
        return spec

    async def hidden(call: ToolCall) -> ToolCall:
        found = await preparation.hidden(call, spec.caller)
        if isinstance(found, ToolResult):
            raise JobRefused(found)
        return found

    poll = spec.poll
    if poll is not None:
        poll = poll.model_copy(update={"arguments": (await hidden(poll.call_with(poll.arguments))).arguments})
    ends = [await hidden(end) if isinstance(end, ToolCall) else end for end in spec.on_complete]
    start = None if spec.start is None else await hidden(spec.start)
    return spec.model_copy(update={"start": start, "poll": poll, "on_complete": tuple(ends)})
