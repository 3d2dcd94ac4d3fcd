"""What tests of metrics share: a Redis without other tests' workers, which would take calls that are counted here."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with own_bed(owls, tmp_path_factory.mktemp("bed")) as bed:
        yield bed
