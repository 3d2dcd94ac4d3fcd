"""A module whose work goes on without an open request."""

import time

from toolfleet.sdk import Accepted, Module, StatusAnswer

module = Module("brood", description="Hatches eggs.")
hatches_at: dict[str, float] = {}


@module.tool(effect="once")
async def hatch(eggs: int) -> str:
    """Have eggs hatched."""
    handle = f"nest-{len(hatches_at) + 1}"
    hatches_at[handle] = time.monotonic() + 0.5 * eggs
    raise Accepted(handle, poll_after_seconds=0.5)


@module.status
async def where(handle: str, *, cancel: bool) -> StatusAnswer:
    """Say where the eggs of a nest are."""
    if handle not in hatches_at:
        return StatusAnswer.unknown()
    if cancel:
        del hatches_at[handle]
        return StatusAnswer.failed("Nobody wanted the owls any more.", effect_state="none")
    if time.monotonic() < hatches_at[handle]:
        return StatusAnswer.running(message="warming")
    return StatusAnswer.done("owls")
