"""What tests of the command over a gateway share: one gateway for all of them, and people with keys."""

from collections.abc import Iterator

import pytest

from support.command import Ended, Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.worker_process import WorkerProcess


@pytest.fixture(scope="package")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway(bed) as gateway:
        yield gateway


@pytest.fixture
def run_as(run: Run, gateway: KeyedGateway, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command as one of the people with a key."""

    def run_as(who: str, *words: str) -> Ended:
        monkeypatch.setenv("TOOLFLEET_GATEWAY_URL", gateway.url)
        monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys[who].text)
        return run(*words)

    return run_as
