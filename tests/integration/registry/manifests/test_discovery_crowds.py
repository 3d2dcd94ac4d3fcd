"""Discovery of very many modules: a bounded number is asked at once, and those that are silent hold up no others."""

import asyncio
from dataclasses import dataclass, field

from support.modules.raw_modules import offering, raw_module
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.manifests import discovery
from toolfleet_registry.manifests.discovery import discover
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control.refresh import TASK


@dataclass
class Crowd:
    """Many modules at one address; each answers when `patience` of them, itself among them, have been asked."""

    patience: int = 1
    asked: int = 0
    at_once: int = 0
    most_at_once: int = 0
    patient: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.asked >= self.patience:
            self.patient.set()
        await self.patient.wait()
        self.at_once -= 1
        await offering(head.split(b"/")[1].decode(), "push")(head, writer)


async def found_in(crowd: Crowd, *, number: int, at_once: int) -> int:
    async with raw_module(crowd) as url:
        services = {f"m{n}": f"{url}/m{n}" for n in range(number)}
        looks = await discover(services, timeout_seconds=30, max_bytes=10_000, at_once=at_once)
    return sum(isinstance(look, ModuleManifest) for look in looks.values())


async def test_only_so_many_are_asked_at_once() -> None:
    """And all of them in the end: the time of each begins with its turn."""
    crowd = Crowd()

    assert await found_in(crowd, number=300, at_once=7) == 300
    assert crowd.most_at_once <= 7


async def test_those_that_are_silent_hold_up_no_others() -> None:
    """More are silent than are served at once; they answer only when the last one has been asked."""
    crowd = Crowd(patience=discovery._AT_WORK + 5)

    assert await found_in(crowd, number=crowd.patience, at_once=500) == crowd.patience


def test_a_refresh_has_time_for_all_rounds() -> None:
    """Also if no module answers."""
    services = {f"m{n}": "http://127.0.0.1:9" for n in range(1001)}
    app = make_app(Settings(redis_url="redis://127.0.0.1:1/0", module_services=services, discovery_timeout_seconds=10))

    assert app.tasks[TASK].soft_time_limit == 3 * 10 + 20
