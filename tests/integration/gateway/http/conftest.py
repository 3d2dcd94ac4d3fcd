"""What tests of requests share: a gateway with small limits, and no worker."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process

LIMITS = {"TOOLFLEET_MAX_ARGUMENTS_BYTES": "25000"}  # of which a body has room for four
TIMES = {"toolfleet_gateway.http.app.BODY_SECONDS": 3, "toolfleet_gateway.http.server.HEADER_SECONDS": 3}


@pytest.fixture(scope="module")
def strict(bed: TestBed) -> Iterator[Gateway]:
    """A gateway that does not wait for long, and takes little."""
    with gateway_process(bed, env=LIMITS, constants=TIMES) as gateway:
        yield gateway
