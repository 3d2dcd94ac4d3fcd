"""An incident, step by step, in a real browser: a module hangs, and an operator sees it, closes its tool and replays what has died."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.console.hanging_letters import HangingLetters, hanging_letters
from support.console.real_browser import RealPage, browser_path, real_page
from support.fleet import TestBed
from support.gateways.keyed_gateway import keyed_gateway
from support.waiting import wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.redis_server import redis_server

TOOL = "letters.send"
ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
SLOTS, HUNG = 4, 12  # calls that run at once, and those that are made while the module hangs


@dataclass
class Incident:
    """A small fleet, whose one module begins to hang when somebody says so; `real` is what its operator sees."""

    letters: HangingLetters
    fleet: ToolFleet
    real: RealPage

    async def send(self, to: str) -> ToolResult:
        """As an agent does."""
        return await self.fleet.call(ToolCall(tool_name=TOOL, arguments={"to": to}), ADA, timeout=90)

    async def is_offered(self) -> bool:
        return TOOL in {tool.name for tool in await self.fleet.tools(ADA)}


@pytest.fixture
async def incident(tmp_path: Path) -> AsyncIterator[Incident]:
    browser_path()
    (tmp_path / "logs").mkdir()
    more: dict[str, object] = {"worker_concurrency": SLOTS, "calls_per_caller": HUNG}
    with hanging_letters() as letters, redis_server(tmp_path / "redis") as url:
        bed = TestBed(url, (letters.module,), tmp_path / "logs", more)
        with bed.worker(), keyed_gateway(bed) as gateway:
            async with ToolFleet(settings=bed.settings) as fleet, real_page(gateway, "olga") as real:
                yield Incident(letters, fleet, real)


@pytest.mark.timeout(300)
async def test_a_hanging_module_is_seen_closed_mended_and_made_up_for(incident: Incident) -> None:
    """From the overview to the replay by filter: each letter is sent, and none twice."""
    good = [f"anna-{number}" for number in range(6)]
    hung = [f"berta-{number}" for number in range(HUNG)]
    assert all([(await incident.send(to)).success for to in good])
    incident.letters.hangs = True
    calls = [asyncio.create_task(incident.send(to)) for to in hung]

    await _sees_it_on_the_overview(incident)
    await _finds_a_call(incident)
    await _disables_the_tool(incident)
    results = await asyncio.gather(*calls)
    await _enables_it_once_it_is_mended(incident)
    died = await _replays_by_filter(incident)

    lost = [to for to, result in zip(hung, results, strict=True) if result.effect_state == "unknown"]
    refused = [to for to, result in zip(hung, results, strict=True) if result.effect_state != "unknown"]
    assert len(lost) == died >= SLOTS
    assert sorted(incident.letters.journal) == sorted([*good, "carla", *lost])
    assert not set(refused) & set(incident.letters.journal)


async def _sees_it_on_the_overview(incident: Incident) -> None:
    """Its calls wait, the oldest one for seconds; then calls end without an answer, and the module is said to fail."""
    real = incident.real
    await real.open()
    await real.says("Queues in which something waits")
    await real.says("tools.letters")
    await real.page.get_by_role("row", name="letters failing").wait_for()
    await real.page.get_by_role("row", name="unknown").wait_for()
    await real.picture("incident-overview")


async def _finds_a_call(incident: Incident) -> None:
    """By the module and how it has ended; its page says where the time went."""
    real = incident.real
    await real.page.get_by_role("link", name="Calls", exact=True).click()
    await real.page.get_by_label("Module").fill("letters")
    await real.page.get_by_label("Outcome").fill("unknown")
    await real.page.get_by_role("button", name="Filter").click()
    await real.page.locator("#list tbody a").first.wait_for()
    assert "module=letters" in real.page.url
    await real.picture("incident-calls")
    await real.page.locator("#list tbody a").first.click()
    await real.page.get_by_role("heading", name="Where its time went").wait_for()
    await real.says("timed_out")
    await real.picture("incident-call")


async def _disables_the_tool(incident: Incident) -> None:
    """From the call's page. From then on agents are refused at once, and the module gets no more."""
    real = incident.real
    await real.page.get_by_role("link", name="The tool").click()
    await real.page.locator("summary", has_text="Disable").click()
    await real.page.get_by_role("button", name="Disable it").click()
    await real.says("No caller may use it until it is enabled.")
    await real.picture("incident-disabled")

    async def is_closed() -> bool:
        return not await incident.is_offered()

    await wait_until_answered(is_closed, "agents have heard of it")
    refused = await incident.send("dora")
    assert (refused.error_code, refused.error) == ("permission_denied", f"Tool '{TOOL}' is disabled by an operator.")


async def _enables_it_once_it_is_mended(incident: Incident) -> None:
    """It is started anew, and its journal says that none of the letters was sent. Then the next call is answered."""
    real, letters = incident.real, incident.letters
    await wait_until(lambda: letters.module.running == 0, "the module has nothing in hand")
    assert not [to for to in letters.journal if to.startswith("berta")]
    letters.hangs = False
    await real.page.locator("summary", has_text="Enable").click()
    await real.page.get_by_role("button", name="Enable it").click()
    await real.says("It may be used again.")

    async def is_answered() -> bool:  # a worker looks again before it refuses, but not twice within a second
        return await incident.is_offered() and (await incident.send("carla")).success

    await wait_until_answered(is_answered, "calls are answered again")
    await real.open()
    await real.page.get_by_role("row", name="letters well").wait_for()


async def _replays_by_filter(incident: Incident) -> int:
    """Those of the tool, with progress; none is left, and the audit says who it was. Returns how many there were."""
    real = incident.real
    await real.page.get_by_role("link", name="Dead letters").click()
    await real.page.get_by_label("About").fill(TOOL)
    await real.page.get_by_role("button", name="Filter").click()
    await real.page.locator(".bulk summary", has_text="Replay all").click()
    await real.picture("incident-letters")
    await real.page.locator(".bulk details[open] button").click()
    await real.says("That is all of them.")
    await real.picture("incident-replay")
    progress = real.page.get_by_role("progressbar")
    died = int(await progress.get_attribute("max"))
    assert await real.page.locator(".faults").count() == 0
    await real.page.get_by_role("link", name="Who did what").click()
    await real.page.get_by_role("heading", name="Audit", level=1).wait_for()
    await real.says("olga")
    await real.open(f"/dead-letters?about={TOOL}")
    await real.says("There are none.")
    return died
