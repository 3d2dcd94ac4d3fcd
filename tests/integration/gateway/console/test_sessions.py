"""Who is signed in at the console, for how long, and which forms count."""

import contextlib
import json
import zlib
from contextlib import AsyncExitStack

import httpx
import pytest

from support.console.plain_browser import ConsoleBrowser, browsing
from support.fleet import TestBed
from support.gateways.gateway_here import gateway_here
from support.gateways.keyed_gateway import PEOPLE, KeyedGateway
from support.waiting import wait_until_answered
from toolfleet_registry.access import COMMAND_LINE
from toolfleet_registry.api_keys import ApiKeys

COOKIE = "toolfleet_console"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


async def leads_to(browser: ConsoleBrowser, below: str = "/tools") -> str:
    """Where a page sends somebody; nowhere if it is shown."""
    answer = await browser.client.get(f"/console{below}")
    return str(answer.headers.get("location", ""))


async def test_whoever_is_not_signed_in_is_led_to_the_form(gateway: KeyedGateway) -> None:
    """And from there to the page they wanted; a stream and a part of a page are told 401."""
    async with browsing(gateway, None) as browser:
        assert await leads_to(browser, "/tools/owls.echo") == "/console/login?next=/tools/owls.echo"
        stream = await browser.client.get("/console/live", headers={"accept": "text/event-stream"})
        part = await browser.client.get("/console/tools", headers={"hx-request": "true"})
        form = (await browser.get("/login?next=/tools/owls.echo")).form("/login")
        page = await browser.send(form, credential=gateway.keys["vera"].text)

    assert (stream.status_code, part.status_code) == (401, 401)
    assert part.headers["hx-redirect"] == "/console/login?next=/tools"
    assert "owls.echo" in page.text
    assert page.status == 200


@pytest.mark.parametrize("going_to", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/a//b", "x"])
async def test_signing_in_leads_to_no_other_host(gateway: KeyedGateway, going_to: str) -> None:
    """Whatever a link to the form says, it goes on below the console."""
    async with browsing(gateway, None) as browser:
        fields = {"next": going_to, "credential": gateway.keys["vera"].text}
        answer = await browser.post("/login", fields)

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/")


@pytest.mark.parametrize("credential", ["", "tf_no_such_key", "two words", "nö", "a\nb", "x" * 5_000])
async def test_what_is_no_key_signs_nobody_in(gateway: KeyedGateway, credential: str) -> None:
    """The form says so, does not repeat what was typed, and sets no session."""
    async with browsing(gateway, None) as browser:
        answer = await browser.post("/login", {"credential": credential})

    assert answer.status_code in {401, 422, 429}
    assert COOKIE not in answer.cookies
    assert not credential or credential not in answer.text


async def test_the_cookie_is_only_for_the_console(gateway: KeyedGateway) -> None:
    """No script reads it, no other site has it sent, it holds no readable key, and behind TLS it is for TLS only."""
    async with browsing(gateway, None) as browser:
        fields = {"credential": gateway.keys["vera"].text}
        plain = await browser.post("/login", fields)
        tls = await browser.post("/login", fields, headers={"x-forwarded-proto": "https"})
    said = plain.headers["set-cookie"]

    assert said.startswith(f"{COOKIE}=")
    assert said.partition("; ")[2] == "HttpOnly; Max-Age=43200; Path=/console; SameSite=strict"
    assert "Secure" in tls.headers["set-cookie"]
    assert gateway.keys["vera"].text not in said


async def test_a_changed_cookie_is_no_session(gateway: KeyedGateway) -> None:
    """Each part of it counts; nor is one that was made without the fleet's key."""
    async with browsing(gateway, "vera") as browser:
        good = browser.client.cookies[COOKIE]
        facts = {"key": gateway.keys["ada"].text, "csrf": "x", "until": 9e9}
        forged = zlib.compress(json.dumps(facts).encode()).hex()
        wrong = [
            good[:40] + ("A" if good[40] != "A" else "B") + good[41:],
            good[1:],
            good[: len(good) // 2],
            "",
            forged,
            "ä",
        ]
        places = []
        for value in wrong:
            answer = httpx.Request("GET", f"{gateway.url}/console/tools")
            answer.headers["cookie"] = f"{COOKIE}={value}".encode().decode("latin-1")
            async with httpx.AsyncClient(trust_env=False) as client:
                places.append((await client.send(answer)).headers.get("location", "").partition("?")[0])

    assert places == ["/console/login"] * len(wrong)


async def test_a_revoked_key_ends_its_session(gateway: KeyedGateway, bed: TestBed) -> None:
    """Within seconds, at each gateway, and the form says why; its stream ends, too."""
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        made = keys.create(PEOPLE["vera"], COMMAND_LINE)
        async with browsing(gateway, "vera", key=made.text) as browser:
            assert await leads_to(browser) == ""
            async with browser.client.stream("GET", "/console/live") as stream:
                lines = stream.aiter_lines()
                assert [await anext(lines) for _ in range(3)][-1] == "event: reading"
                keys.revoke([made.key.id])
                assert [line async for line in lines if line.startswith("event: revoked")] == ["event: revoked"]

            async def is_out() -> bool:
                return "ended=1" in await leads_to(browser)

            await wait_until_answered(is_out, "the session has ended")
            assert "Your session has ended" in (await browser.get("/login?ended=1")).text


async def test_signing_out_ends_the_session_at_every_gateway(gateway: KeyedGateway, bed: TestBed) -> None:
    """Each takes the cookie until then; a copy of it counts nowhere: for no page, form or open stream. Other sessions of the key go on."""
    with gateway_here(bed) as second:
        async with browsing(gateway, "vera") as browser, browsing(gateway, "vera") as other, AsyncExitStack() as stack:
            csrf = await browser.csrf()
            copied = {"cookie": f"{COOKIE}={browser.client.cookies[COOKIE]}"}
            client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, headers=copied))
            streams = [
                (await stack.enter_async_context(client.stream("GET", f"{url}/console/live"))).aiter_lines()
                for url in (gateway.url, second.url)
            ]
            for lines in streams:
                assert [await anext(lines) for _ in range(3)][-1] == "event: reading"
            out = await browser.send((await browser.get("/tools")).form("/logout"))
            pages = [await client.get(f"{url}/console/tools") for url in (gateway.url, second.url)]
            forms = [await client.post(f"{second.url}/console/theme", data={"csrf": csrf, "theme": "dark"})]
            ends = [[line async for line in lines if line.startswith("event: revoked")] for lines in streams]

            assert "Sign in" in out.text
            assert (await leads_to(browser)).startswith("/console/login")
            assert await leads_to(other) == ""

    assert [answer.headers.get("location", "").partition("?")[0] for answer in (*pages, *forms)] == [
        "/console/login"
    ] * 3
    assert ends == [["event: revoked"]] * 2


async def test_a_form_counts_only_with_its_mark(gateway: KeyedGateway) -> None:
    """Without one, with that of another session, or of another person nothing is changed."""
    async with browsing(gateway, "olga") as browser, browsing(gateway, "olga") as second:
        for csrf in ({}, {"csrf": ""}, {"csrf": await second.csrf()}, {"csrf": "x" * 32}):
            answer = await browser.post("/tools/owls.nap_once", {"action": "disable", **csrf})
            assert (answer.status_code, "wrong_form" in answer.text) == (403, True)

        assert [form.fields["action"] for form in (await browser.get("/tools/owls.nap_once")).forms[2:3]] == ["disable"]


async def test_another_site_sends_no_forms(gateway: KeyedGateway) -> None:
    """Whatever it knows: the browser says who sends it, and other kinds of bodies are no forms."""
    async with browsing(gateway, "olga") as browser:
        fields = {"action": "disable", "csrf": await browser.csrf()}
        other = [
            await browser.post("/tools/owls.nap_once", fields, headers={"sec-fetch-site": "cross-site"}),
            await browser.client.post("/console/tools/owls.nap_once", json=fields),
            await browser.client.post("/console/tools/owls.nap_once", content="a=1&" * 1_000),
        ]

    assert [answer.status_code for answer in other] == [403, 415, 415]


async def test_pages_have_strict_headers(gateway: KeyedGateway) -> None:
    """Each of them, problems, too: nothing inline, no other host, nothing kept."""
    async with browsing(gateway, "vera") as browser:
        for below in ("/", "/tools", "/none", "/keys", "/login"):
            answer = await browser.client.get(f"/console{below}")
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            for inline in ("<style", "style=", "<script>", "javascript:", "onclick=", "http://", "https://"):
                assert inline not in answer.text, (below, inline)


async def test_below_a_proxys_path_links_and_cookies_have_it(bed: TestBed) -> None:
    """The proxy takes it off before the gateway."""
    with gateway_here(bed, gateway_root_path="/fleet") as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
            away = await client.get("/console/tools")
            signed_in = await client.post("/console/login", data={"credential": gateway.key, "next": "/tools"})
            cookie = f"{COOKIE}={signed_in.cookies[COOKIE]}"
            page = await client.get("/console/tools", headers={"cookie": cookie})
            style = page.text.partition('rel="stylesheet" href="/fleet')[2].partition('"')[0]
            sheet = await client.get(style)

    assert away.headers["location"] == "/fleet/console/login?next=/tools"
    assert signed_in.headers["location"] == "/fleet/console/tools"
    assert "Path=/fleet/console;" in signed_in.headers["set-cookie"]
    assert 'href="/fleet/console/calls"' in page.text
    assert 'href="/console' not in page.text
    assert sheet.headers["content-type"].startswith("text/css")
