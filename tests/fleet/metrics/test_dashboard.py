"""A real Prometheus scrapes a real fleet, and every query of the alerts and of the dashboard is run there."""

from contextlib import ExitStack

import pytest

from support.fleet import TestBed
from support.metrics.metered import metered_gateway
from support.metrics.prometheus import (
    ALERTS,
    alerts,
    families_in,
    labels_in,
    needs_prometheus,
    panels,
    prometheus,
)
from support.metrics.scraping import wait_until_read
from toolfleet_cli.local.redis_server import held_port
from toolfleet_registry.contracts import Caller
from toolfleet_registry.metric_families import FAMILIES

OF_TARGETS = {"instance", "le"}  # labels that Prometheus gives, or a histogram has
BY_NAME = {family.name: family for family in FAMILIES}


@needs_prometheus
async def test_every_query_has_series_in_a_real_fleet(
    bed: TestBed, owner: Caller, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All panels of the dashboard show something, and every alert can be evaluated."""
    with metered_gateway(bed) as metered, held_port() as port, bed.worker(metrics_port=port), ExitStack() as stack:
        ports = (metered.port, port)
        server = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), ports, ALERTS))
        await metered.use(owner)
        await server.check(panels())
        calls = 'sum(toolfleet_calls_total{module="owls", outcome="success"})'
        await wait_until_read(
            lambda: server.query(calls)[0]["value"][1] == "3", "Prometheus counts the calls that were made"
        )
        assert {rule["name"] for rule in server.rules() if rule["state"] == "firing"} <= {"ToolfleetOutcomesUnknown"}


def test_queries_name_only_what_there_is() -> None:
    """Each family is in the table, and has the labels by which it is asked."""
    for where, expression in {**alerts(), **panels()}.items():
        families = families_in(expression)
        assert families <= BY_NAME.keys(), where
        labels = {label for family in families for label in BY_NAME[family].labels}
        assert labels_in(expression) <= labels | OF_TARGETS, where


def test_each_family_is_shown() -> None:
    """Whatever the fleet tells is in a panel of the dashboard, but for numbers that an alert or another panel has."""
    shown = {family for expression in panels().values() for family in families_in(expression)}

    assert BY_NAME.keys() - shown == set()
