"""What tests of requests share: a gateway with small limits, and no worker."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process

LIMITS = {
    "TOOLFLEET_GATEWAY_MAX_BODY_BYTES": "100000",
    "TOOLFLEET_GATEWAY_BODY_SECONDS": "3",
    "TOOLFLEET_GATEWAY_HEADER_SECONDS": "3",
    "TOOLFLEET_GATEWAY_MAX_HEADER_BYTES": "8192",
}


@pytest.fixture(scope="module")
def strict(bed: TestBed) -> Iterator[Gateway]:
    """A gateway that does not wait for long, and takes little."""
    with gateway_process(bed, env=LIMITS) as gateway:
        yield gateway
