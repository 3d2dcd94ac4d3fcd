"""A real browser at the console: Debian's Chromium, driven by Playwright; skipped where one of them is not there."""

import importlib
import importlib.util
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.gateways.keyed_gateway import KeyedGateway

PICTURES = "CONSOLE_PICTURES"
"""The variable that names the folder for pictures of pages; without it none are made."""

ROOT = Path(__file__).parents[3]
WIDE, NARROW = {"width": 1180, "height": 760}, {"width": 390, "height": 844}
_PATIENCE_MS = 20_000


@dataclass
class RealPage:
    """A page of Playwright's, and what was wrong in it: errors, violations of its policy, requests to other hosts."""

    page: Any
    root: str
    faults: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)

    async def open(self, below: str = "/") -> None:
        """Open a page of the console, and wait until its scripts have run."""
        await self.page.goto(f"{self.root}{below}")
        await self.page.wait_for_load_state("load")

    async def picture(self, name: str) -> None:
        """Keep what is seen, if somebody wants pictures."""
        if folder := os.environ.get(PICTURES):
            await self.page.screenshot(path=ROOT / folder / f"{name}.png", animations="disabled")

    async def is_too_wide(self) -> bool:
        """Whether one would have to scroll sideways."""
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    async def says(self, text: str) -> None:
        """Wait until the page says it."""
        await self.page.get_by_text(text).first.wait_for()


def browser_path() -> str:
    """Chromium's. Skips the test where there is none, or no Playwright."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("there is no Chromium or no Playwright: `make .venv/.playwright` installs the second")
    return path


@asynccontextmanager
async def real_page(gateway: KeyedGateway, who: str, **options: Any) -> AsyncGenerator[RealPage]:
    """Somebody who has signed in by the form, in a browser of their own. At the end nothing may have been wrong."""
    path = browser_path()
    api: Any = importlib.import_module("playwright.async_api")  # not everybody has it
    async with api.async_playwright() as playwright:
        arguments = ["--no-sandbox", "--no-proxy-server", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        context = await browser.new_context(**{"viewport": WIDE, "locale": "en-GB", "timezone_id": "UTC", **options})
        context.set_default_timeout(_PATIENCE_MS)
        real = RealPage(await context.new_page(), f"{gateway.url}/console")
        _watch(real)
        await real.open("/login")
        await real.page.get_by_label("API key").fill(gateway.keys[who].text)
        await real.page.get_by_role("button", name="Sign in").press("Enter")
        await real.page.get_by_role("heading", level=1).wait_for()
        yield real
        await browser.close()
    assert real.faults == []


def _watch(real: RealPage) -> None:
    def console(message: Any) -> None:
        if message.type in {"error", "warning"} and "status of 4" not in message.text:
            real.faults.append(f"{message.type}: {message.text}")

    def request(asked: Any) -> None:
        if not asked.url.startswith((real.root, "data:")):
            real.faults.append(f"asked {asked.url}")

    def ended(asked: Any) -> None:
        if asked.url.endswith("/live"):
            real.streams.append("ended")

    def begun(asked: Any) -> None:
        if asked.url.endswith("/live"):
            real.streams.append("begun")

    real.page.on("console", console)
    real.page.on("pageerror", lambda error: real.faults.append(str(error)))
    real.page.on("request", request)
    real.page.on("request", begun)
    real.page.on("requestfinished", ended)
    real.page.on("requestfailed", ended)
