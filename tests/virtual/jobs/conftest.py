"""What tests of jobs share: a module that does long work, a worker, beat and an agent."""

import pytest

from bed.fleet import Bed
from support.modules.works import Works, make_works
from toolfleet import ToolFleet


@pytest.fixture
def works() -> Works:
    return make_works(ends_after=2)


@pytest.fixture
async def fleet(bed: Bed, works: Works) -> ToolFleet:
    """An agent's side, with all that jobs need."""
    await bed.serve(works.server)
    await bed.worker()
    await bed.beat()
    return await bed.agent()
