"""Beat keeps the manifests fresh, through the control queue that the fast lane serves."""

from bed import clock
from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller


async def test_a_new_tool_is_offered_within_a_refresh(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Two beats run side by side; the modules are asked at once and then every interval, and agents see what changed."""
    bed.given["refresh_interval_seconds"] = interval = 30
    began_at = clock.monotonic()
    await bed.serve(owls)
    await bed.worker(lane="fast")
    for _ in range(2):
        await bed.beat()
    await until(lambda: owls.looks >= 1, "beat has had the module asked")
    fleet = await bed.agent()
    added_at = clock.monotonic()
    owls.add("new", owls.tools["owls.echo"])

    async def is_offered() -> bool:
        return "owls.new" in {tool.name for tool in await fleet.tools(owner)}

    await until(is_offered, "it is offered")
    assert clock.monotonic() - added_at < interval + 5
    # As often as its intervals allow since the first process began, and not once for each beat.
    assert owls.looks <= 2 + (clock.monotonic() - began_at) / interval
