"""What tests in a browser share: the browser, and a gateway of a fleet that has something to show."""

import pytest

from support.console.console_fixtures import bed, gateway, worker
from support.console.real_browser import browser_path

__all__ = ["bed", "gateway", "worker"]


@pytest.fixture(scope="session", autouse=True)
def _browser() -> None:
    """Where there is none, no fleet is started for it."""
    browser_path()
