"""What tests of faults share: an agent of their own fleet, whose workers they start themselves."""

from collections.abc import AsyncIterator

import pytest

from support.fleet import TestBed
from toolfleet import ToolFleet


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    """An agent's fleet without any worker."""
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet
