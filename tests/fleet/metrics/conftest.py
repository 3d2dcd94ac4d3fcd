"""What tests of metrics share: a Redis without other tests' workers, which would take calls that are counted here."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="package")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))
