"""Each page of the console in a real browser: what is on it, how wide it is, and what it asks for."""

import pytest

from support.console.console_fleet import bury
from support.console.real_browser import NARROW, real_page
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from toolfleet import Caller, Conversation, ToolCall, ToolFleet

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
# Each page, its heading, and the name of its picture in the documents.
PAGES = [
    ("/", "Overview", "overview"),
    ("/calls", "Calls", None),
    ("/calls/{call}", "Call", "call"),
    ("/conversation?id=nest&user=ada", "Conversation", "conversation"),
    ("/approvals", "Approvals", None),
    ("/approvals/{approval}", "Approval of owls.feed", "approval"),
    ("/dead-letters", "Dead letters", None),
    ("/dead-letters/call/page-1", "Dead call", None),
    ("/modules", "Modules", None),
    ("/modules/owls", "owls", None),
    ("/tools", "Tools", None),
    ("/tools/owls.feed", "owls.feed", None),
    ("/tools/owls.feed/try", "Try owls.feed", "trial"),
    ("/jobs", "Jobs", None),
    ("/wake-ups", "Wake-ups", None),
    ("/queues", "Queues", None),
    ("/limits?user=bob", "Limits", None),
    ("/agents", "Agents", None),
    ("/agents/production", "Agent production", None),
    ("/errors", "Tool files", None),
    ("/audit", "Audit", None),
    ("/keys", "Keys", None),
    ("/none", "That did not work", None),
]


@pytest.fixture
async def shown(gateway: KeyedGateway, fleet: ToolFleet, bed: TestBed) -> dict[str, str]:
    """The ids of a call that has ended and of one that waits for people, beside dead letters."""
    nest = Conversation(conversation_id="nest")
    await fleet.call(ToolCall(tool_name="owls.echo", arguments={"text": "hoo"}), OWNER, conversation=nest)
    await fleet.call(ToolCall(tool_name="owls.fail", arguments={}), OWNER, conversation=nest)
    ended = await fleet.call(ToolCall(tool_name="owls.garble_read", arguments={}), OWNER, conversation=nest)  # twice
    start = ToolCall(tool_name="owls.echo", arguments={"text": "hoo"})
    await fleet.jobs.start(start, caller=OWNER, conversation=nest, name="count the owls")
    bury(bed, ["page-1", "page-2", "page-3"])
    waiting = await gateway.post("bob", "/calls", {"tool_name": "owls.feed", "arguments": {"n": 2, "note": "mice"}})
    return {"call": str(ended.audit.call_id), "approval": str(waiting.json()["call_id"])}


@pytest.mark.usual
async def test_the_console_works_in_a_browser(gateway: KeyedGateway) -> None:
    """Somebody signs in, and sees how the fleet is; no request leaves the host, and nothing breaks the policy."""
    async with real_page(gateway, "vera") as real:
        snapshot = await real.page.locator("body").aria_snapshot()

    assert "Overview" in snapshot


@pytest.mark.timeout(300)
async def test_each_page_has_its_landmarks_and_headings(gateway: KeyedGateway, shown: dict[str, str]) -> None:
    """As a screen reader has it: one heading, a navigation that says where one is, tables with captions, named fields."""
    async with real_page(gateway, "ada") as real:
        for below, heading, picture in PAGES:
            await real.open(below.format(**shown))
            snapshot = await real.page.locator("body").aria_snapshot()
            assert f'heading "{heading}" [level=1]' in snapshot, below
            assert snapshot.count("[level=1]") == 1, below
            for landmark in ("- banner:", '- navigation "Console":', "- main"):
                assert landmark in snapshot, (below, landmark)
            nameless = await real.page.evaluate(
                "[...document.querySelectorAll('main input:not([type=hidden]), main select, main textarea')]"
                ".filter((each) => !each.labels.length).map((each) => each.name)"
            )
            assert nameless == [], below
            assert await real.page.locator("table:not(:has(caption))").count() == 0, below
            if picture:
                await real.picture(picture)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_each_page_fits_on_a_telephone(gateway: KeyedGateway, shown: dict[str, str], colours: str) -> None:
    """At 390 pixels nobody scrolls sideways, in light and in dark, and tables are read as cards."""
    async with real_page(gateway, "ada", viewport=NARROW, color_scheme=colours) as real:
        back = await real.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(18, 22, 29)") == (colours == "dark")
        for below, _, _ in PAGES:
            await real.open(below.format(**shown))
            assert not await real.is_too_wide(), below
        await real.open("/calls")
        if colours == "dark":
            await real.picture("telephone-dark")


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_where_a_calls_time_went_is_read_without_its_bars(
    gateway: KeyedGateway, shown: dict[str, str], colours: str
) -> None:
    """On a telephone each part is a card with its words and times; bars are nothing to a screen reader, and within the page."""
    async with real_page(gateway, "vera", viewport=NARROW, color_scheme=colours) as real:
        await real.open(f"/calls/{shown['call']}")
        section = real.page.get_by_role("region", name="Where its time went")
        snapshot = await section.aria_snapshot()
        bars = await section.locator("rect").evaluate_all(
            "(all) => all.map((each) => [each.getBoundingClientRect().left, each.getBoundingClientRect().right])"
        )
        hidden = await section.locator("svg[aria-hidden=true][focusable=false]").count()
        if colours == "dark":
            await section.scroll_into_view_if_needed()
            await real.picture("call-telephone")

    for words in ("Queued", "Attempt 1", "Waited for its retry", "Attempt 2", "Result stored and announced"):
        assert words in snapshot
    assert "img" not in snapshot
    assert len(bars) == hidden > 4
    assert all(0 <= left < right <= NARROW["width"] for left, right in bars)


async def test_text_has_enough_contrast(gateway: KeyedGateway, shown: dict[str, str]) -> None:
    """Each colour of text on what lies behind it has 4.5 to 1, in both schemes."""
    for colours in ("light", "dark"):
        async with real_page(gateway, "ada", color_scheme=colours) as real:
            await real.open(f"/calls/{shown['call']}")
            faint = await real.page.evaluate(_FAINT)
            assert faint == [], colours


_FAINT = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const place = document.createElement("canvas").getContext("2d");
    place.fillStyle = style.getPropertyValue(name).trim();
    const parts = [1, 3, 5].map((at) => parseInt(place.fillStyle.slice(at, at + 2), 16) / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [["--text", "--back"], ["--text", "--panel"], ["--quiet", "--back"], ["--quiet", "--panel"], ["--link", "--panel"],
    ["--link", "--back"], ["--good", "--good-back"], ["--bad", "--bad-back"], ["--odd", "--odd-back"], ["--text", "--code"]];
  return pairs.filter(([one, two]) => {
    const [high, low] = [light(one), light(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05) < 4.5;
  });
}"""
