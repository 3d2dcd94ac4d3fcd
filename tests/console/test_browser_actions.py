"""What people do at the console in a real browser, by keys and by clicks, and what pages do by themselves."""

import pytest
from redis.asyncio import Redis

from support.console.console_fleet import bury
from support.console.real_browser import real_page
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import put
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def test_the_overview_goes_on_and_rests_while_nobody_sees_it(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """A call appears without a reload; a hidden tab has no stream, and one that is seen again has."""
    async with real_page(gateway, "vera") as real:
        await wait_until(lambda: real.streams == ["begun"], "the stream is open")
        await fleet.call(ToolCall(tool_name="owls.echo", arguments={"text": "hoo"}), OWNER)
        await real.page.get_by_role("link", name="owls.echo").wait_for()
        assert await real.page.locator("[data-chart] canvas").count() == 2

        hidden = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
        await real.page.evaluate(hidden % "true")
        await real.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await wait_until(lambda: real.streams == ["begun", "ended"], "the stream has ended")
        await real.page.evaluate(hidden % "false")
        await real.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await wait_until(lambda: real.streams == ["begun", "ended", "begun"], "the stream is open again")


async def test_a_call_is_approved(gateway: KeyedGateway) -> None:
    """From the list to the call, and a sentence says what came of it."""
    asked = await gateway.post("bob", "/calls", {"tool_name": "owls.feed", "arguments": {"n": 41}})
    async with real_page(gateway, "ada") as real:
        await real.open("/approvals")
        await real.page.locator(f"a[href$='{asked.json()['call_id']}']").click()
        await real.page.get_by_role("button", name="Approve as it is").click()
        await real.says("owls.feed: approved.")


@pytest.mark.parametrize("word", ["Replay", "Drop"])
async def test_letters_of_a_filter_are_handled_with_progress(gateway: KeyedGateway, bed: TestBed, word: str) -> None:
    """After one confirmation the page goes on by itself, until it says that it has done all."""
    bury(bed, [f"{word.lower()}-bulk-{number}" for number in range(12 if word == "Replay" else 120)])
    async with real_page(gateway, "olga") as real:
        await real.open(f"/dead-letters?about={word.lower()}-bulk")
        await real.page.locator(".bulk summary", has_text=f"{word} all").click()
        await real.page.locator(".bulk details[open] button").click()
        await real.says("That is all of them.")
        done = await real.page.get_by_role("progressbar").get_attribute("value")
        if word == "Replay":
            await real.picture("bulk")

    assert done == ("12" if word == "Replay" else "120")


@pytest.mark.parametrize("word", ["Replay", "Drop"])
async def test_wakeups_of_a_filter_are_handled_with_progress(gateway: KeyedGateway, bed: TestBed, word: str) -> None:
    """As letters are; one is dropped from its own page, by keys."""
    talk = f"{word.lower()}-talk"
    names = [f"{talk}-{number:03}" for number in range(450)]
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        later = ((await redis.time())[0] + 3600) * 1000
        for name in names:
            await put(redis, name, conversation_id=talk, since=90)
        await redis.zadd(Keys().wakes_due, dict.fromkeys(names, later))
        async with real_page(gateway, "olga") as real:
            await real.open(f"/wake-ups/{names[0]}")
            await real.page.locator("summary", has_text="Drop").focus()
            await real.page.keyboard.press("Enter")
            await real.page.keyboard.press("Tab")
            await real.page.keyboard.press("Enter")
            await real.says(f"Dropped {names[0]}.")
            await real.open(f"/wake-ups?about={talk}")
            if word == "Drop":
                await real.picture("wakeups")
            await real.page.locator(".bulk summary", has_text=f"{word} all").click()
            await real.page.locator(".bulk details[open] button").click()
            await real.says("That is all of them.")
            done = await real.page.get_by_role("progressbar").get_attribute("value")
        left = [name for name in names if await redis.zscore(Keys().wakes_due, name) is not None]
        await redis.zrem(Keys().wakes_due, *names)

    assert done == "449"
    assert word == "Replay" or left == []


async def test_everything_is_reached_by_keys(gateway: KeyedGateway) -> None:
    """The skip link leads to the page, a slash to the filter, Enter opens a confirmation, and Escape closes it."""
    async with real_page(gateway, "olga") as real:
        await real.open("/tools/owls.nap")
        await real.page.keyboard.press("Tab")
        assert await real.page.evaluate("document.activeElement.className") == "skip"
        await real.page.keyboard.press("Enter")
        assert await real.page.evaluate("document.activeElement.id") == "main"
        disable = real.page.locator("summary", has_text="Disable")
        while not await disable.evaluate("(each) => each === document.activeElement"):
            await real.page.keyboard.press("Tab")
        await real.page.keyboard.press("Enter")
        await real.page.get_by_role("button", name="Disable it").wait_for()
        await real.page.keyboard.press("Escape")
        assert not await real.page.get_by_role("button", name="Disable it").is_visible()
        await real.open("/calls")
        await real.page.keyboard.press("/")
        assert await real.page.evaluate("document.activeElement.id") == "module"


async def test_a_tool_is_disabled_and_tried(gateway: KeyedGateway) -> None:
    """By its page: the form has a field for each argument, and the result stands below it."""
    async with real_page(gateway, "ada") as real:
        await real.open("/tools/owls.nap/try")
        await real.page.get_by_role("button", name="Call it").click()
        await real.page.get_by_role("heading", name="success").wait_for()
        await real.open("/tools/owls.nap_once")
        await real.page.locator("summary", has_text="Disable").click()
        await real.page.get_by_role("button", name="Disable it").click()
        await real.says("No caller may use it until it is enabled.")


async def test_a_list_does_not_change_below_somebodys_hands(gateway: KeyedGateway, bed: TestBed) -> None:
    """It is read anew by itself, and not while a confirmation is open in it."""
    bury(bed, ["hands-1"])
    async with real_page(gateway, "olga") as real:
        await real.open("/dead-letters?about=hands")
        await real.page.locator("#list summary", has_text="Drop").first.click()
        bury(bed, ["hands-2"])
        async with real.page.expect_response(lambda answer: "dead-letters" in answer.url) as found:
            await real.page.keyboard.press("Escape")
            await real.page.evaluate("document.activeElement.blur()")
        assert (await found.value).ok
        await real.page.locator("a[href$='hands-2']").wait_for()


async def test_colours_are_chosen(gateway: KeyedGateway) -> None:
    """Whatever the system says, for the next page, too."""
    async with real_page(gateway, "vera", color_scheme="light") as real:
        await real.page.get_by_label("Colours").select_option("dark")
        await real.page.get_by_role("button", name="Set").click()
        await real.open("/tools")
        assert await real.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"


async def test_signing_out_ends_the_session(gateway: KeyedGateway) -> None:
    """The form is there again, and the page before is not."""
    async with real_page(gateway, "vera") as real:
        await real.page.get_by_role("button", name="Sign out").click()
        await real.page.get_by_label("API key").wait_for()
        await real.open("/tools")
        await real.page.get_by_label("API key").wait_for()


async def test_a_queue_is_paused_and_resumed(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """With a reason, after one question; calls wait meanwhile, whoever looks sees why, and who may not do it has no button."""
    async with real_page(gateway, "olga") as real:
        await real.open("/queues")
        row = real.page.locator("tr", has_text="tools.owls")
        await row.locator("summary", has_text="Pause").click()
        await row.locator("details[open] input[name=reason]").fill("the nest is mended")
        await row.get_by_role("button", name="Pause it").click()
        await real.says("owls: Paused: within a second nothing more of it is begun.")
        assert "by olga: the nest is mended" in await row.inner_text()

        call = await fleet.submit(ToolCall(tool_name="owls.echo", arguments={"text": "hoo"}), OWNER, timeout=60)
        assert await call.status() == "queued"
        async with real_page(gateway, "vera") as seen:
            await seen.open("/queues")
            assert "the nest is mended" in await seen.page.locator("#list").inner_text()
            assert await seen.page.locator("summary", has_text="Resume").count() == 0

        await row.locator("summary", has_text="Resume").click()
        await row.get_by_role("button", name="Resume it").click()
        await real.says("owls: Resumed.")
        assert (await call.result(2 * PATIENCE_SECONDS)).success
