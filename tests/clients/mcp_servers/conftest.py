"""What tests of public MCP servers share: a fleet of their own behind a gateway, where each test hosts its server."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="package")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="package")
def gateway(bed: TestBed) -> Iterator[Gateway]:
    with bed.worker(), gateway_process(bed) as gateway:
        yield gateway
