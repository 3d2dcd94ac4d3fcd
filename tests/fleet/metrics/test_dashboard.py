"""A real Prometheus scrapes a real fleet, and every query of the alerts and of the dashboard is run there."""

from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.metrics.prometheus import (
    ALERTS,
    Prometheus,
    alerts,
    families_in,
    labels_in,
    needs_prometheus,
    panels,
    prometheus,
)
from support.waiting import wait_until
from toolfleet import ToolFleet
from toolfleet_cli.local.tcp_ports import held_port
from toolfleet_registry.contracts import Caller, ToolCall
from toolfleet_registry.metrics.families import FAMILIES

OF_TARGETS = {"instance", "le"}  # labels that Prometheus gives, or a histogram has
BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture
async def scraped(
    bed: TestBed, owner: Caller, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Prometheus, Gateway, ToolFleet]]:
    """A gateway and a worker that Prometheus scrapes."""
    with ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(2)]
        gateway = stack.enter_context(gateway_process(bed, env={"TOOLFLEET_METRICS_PORT": str(ports[0])}))
        stack.enter_context(bed.worker(metrics_port=ports[1]))
        server = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), ports, ALERTS))
        async with ToolFleet(settings=bed.settings) as fleet:
            yield server, gateway, fleet


@needs_prometheus
async def test_every_query_has_series_in_a_real_fleet(
    scraped: tuple[Prometheus, Gateway, ToolFleet], owner: Caller
) -> None:
    """All panels of the dashboard show something, and every alert can be evaluated."""
    server, gateway, fleet = scraped
    for _ in range(3):
        assert (await fleet.call(ToolCall(tool_name="owls.echo", arguments={"word": "hoot"}), owner)).success
        assert not (await fleet.call(ToolCall(tool_name="owls.fail"), owner)).success

    async with gateway.client() as client:
        assert (await client.get("/tools")).status_code == 200
    for panel, expression in panels().items():
        await wait_until(lambda expression=expression: server.query(expression), f"{panel}: {expression}")  # type: ignore[misc] # bound now
    await wait_until(
        lambda: {rule["health"] for rule in server.rules()} == {"ok"} and len(server.rules()) == len(alerts()),
        "all rules were evaluated",
    )
    calls = 'sum(toolfleet_calls_total{module="owls", outcome="success"})'
    await wait_until(lambda: server.query(calls)[0]["value"][1] == "3", "Prometheus counts the calls that were made")
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
