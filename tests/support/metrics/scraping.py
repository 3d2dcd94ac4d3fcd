"""Reads what a process answers at `/metrics`."""

from collections.abc import Callable, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from support.servers.plain_http import PLAIN
from support.waiting import wait_until

PAUSE_SECONDS = 0.1
"""Between two readings, which cost those who say it and those who read it more than most conditions of a test."""

Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def series_in(text: str) -> Series:
    """Each series' value, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def wait_until_read(condition: Callable[[], object], what: str) -> None:
    """`wait_until` for a condition that reads metrics."""
    await wait_until(condition, what, step=PAUSE_SECONDS)


def scrape(port: int, *, seconds: float = 20) -> Series:
    """What a process answers at this port; nothing, where it does not listen yet."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=seconds, verify=PLAIN)
    except httpx.ConnectError:
        return {}
    return series_in(answer.raise_for_status().text)


def sum_of(series: Series, name: str, **labels: str) -> float:
    """The sum of those series that have these labels; 0 where there is none."""
    wanted = set(labels.items())
    return sum(value for (found, of), value in series.items() if found == name and wanted <= of)


def names_in(series: Series) -> set[str]:
    """The names of all series."""
    return {name for name, _ in series}
