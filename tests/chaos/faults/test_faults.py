"""What is planned, and what the report says of it."""

import random
from collections import Counter
from pathlib import Path

import pytest

from chaos.checks.call_checks import Evidence
from chaos.checks.test_checks import ending, failure, result
from chaos.faults import faults
from chaos.faults.fault_report import came_to, struck
from chaos.faults.faults import CLOCK_KINDS, KINDS, QUEUE_KINDS, Fault, kinds_of, planned
from chaos.faults.moments import IN_REDIS_QUEUES
from chaos.faults.rabbitmq_faults import RABBITMQ_KINDS
from chaos.plan import Plan
from chaos.records.journal import Journal


def plan(faults: int, *, on_rabbitmq: bool = False) -> Plan:
    return Plan(calls=10, faults=faults, seed=1, seconds=60, jobs=10, on_rabbitmq=on_rabbitmq)


@pytest.fixture
def faketime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "libfaketime", lambda: Path("/somewhere"))


def test_so_many_faults_as_there_are_kinds_are_one_of_each(faketime: None) -> None:
    """A short run leaves none out."""
    kinds = kinds_of(plan(0))
    found = Counter(fault.kind for fault in planned(plan(len(kinds)), random.Random(1)))

    assert found == dict.fromkeys(kinds, 1)
    assert found.keys() == KINDS.keys() - RABBITMQ_KINDS.keys()


def test_on_rabbitmq_its_own_faults_are_there_and_none_of_queues_in_redis(faketime: None) -> None:
    """Nor does one wait for what only shows there."""
    faults = planned(plan(1000, on_rabbitmq=True), random.Random(1))

    assert {fault.kind for fault in faults} == KINDS.keys() - QUEUE_KINDS.keys()
    assert not {fault.moment for fault in faults} & IN_REDIS_QUEUES


def test_without_libfaketime_no_clock_is_set_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other kinds are there."""
    monkeypatch.setattr(faults, "libfaketime", lambda: None)
    kinds = {fault.kind for fault in planned(plan(100), random.Random(1))}

    assert kinds == KINDS.keys() - CLOCK_KINDS.keys() - RABBITMQ_KINDS.keys()
    assert "Left out, as libfaketime is not installed: Redis's clock set, worker's clock set." in struck([])


def test_the_report_names_what_was_seen_of_a_kind(faketime: None, tmp_path: Path) -> None:
    """How many happened, and what came of them."""
    (tmp_path / "worker-0.log").write_text("x lease_over_before_sending\n" * 3)
    (tmp_path / "worker-cut-off.log").write_text("x module_watched  is_unreached=True\n")
    ends = [ending(result(), way="burst"), ending(failure(state="none", code="fleet_unavailable"), way="burst")]
    happened = [
        Fault(kind, "any time", is_done=True) for kind in ("burst of calls", "Redis evicting", "Redis evicting")
    ]

    said = came_to(happened, Evidence(ends, Journal([]), 2, {}), 2, tmp_path)

    assert "| burst of calls | 1 | 2 calls: 1 success, 1 fleet_unavailable |" in said
    assert "| Redis evicting | 2 | 2 workers refused to start |" in said
    assert "| 3 requests were not sent; 0 confirmed pairs of writes |" in said
    assert "| it left the module to others 1 times |" in said
