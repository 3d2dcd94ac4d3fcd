"""`fetch_webpage`: what it reads, and where it refuses to go. The web is a server on the loopback interface."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, NoReturn

import pytest

from modules.research import page as page_module
from modules.research.addresses import Address, is_public
from modules.research.fetch import PageFetcher, Resolve, Unreached
from modules.research.fetch import resolve as system_resolve
from modules.research.page import readable
from support.modules.example_modules import Module, serving_here
from support.servers.web_site import WebSite, web_site
from support.streams.stream_server import stream_server
from toolfleet.sdk import ToolError

HTML = "Content-Type: text/html; charset=utf-8"


def only(address: str) -> Callable[[Address], bool]:
    return lambda found: found == ip_address(address)


@pytest.fixture
async def site() -> AsyncIterator[WebSite]:
    async with web_site() as site:
        yield site


@pytest.fixture
def fetcher() -> PageFetcher:
    """One for which 127.0.0.1 is the public internet, and all else is not."""
    return PageFetcher(may_connect=only("127.0.0.1"), seconds=20, max_bytes=10_000)


def url(site: WebSite, path: str, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{site.port}{path}"


def known_as(**hosts: str) -> Any:
    """A name server that knows these hosts, by their first label."""

    async def resolve(host: str, _port: int) -> list[Address]:
        if host.partition(".")[0] not in hosts:
            raise OSError("Name or service not known")
        return [ip_address(address) for address in hosts[host.partition(".")[0]].split()]

    return resolve


async def test_a_page_is_read_as_text(site: WebSite, fetcher: PageFetcher) -> None:
    """Title and text, without markup, scripts and styles."""
    site.page(
        "/owls",
        b"""<!doctype html><html><head><title> Owls &amp;
        others </title><style>p {}</style><script>alert("<p>no</p>")</script></head>
        <body><h1>Owls</h1><p>They   hunt <b>at</b> night.<br>Quietly.</p><svg><text>no</text></svg>
        <ul><li>Barn</li><li>Eagle</li></ul><script>no()</script><!-- no --></body></html>""",
        HTML,
    )
    title, text = readable(await fetcher.fetch(url(site, "/owls")))
    assert title == "Owls & others"
    assert [line for line in text.splitlines() if line] == ["Owls", "They hunt at night.", "Quietly.", "Barn", "Eagle"]


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html; charset=iso-8859-1", "Käuze".encode("latin-1"), "Käuze"),
        ("text/html", b'<meta charset="windows-1252">K\xe4uze \x80', "Käuze €"),
        ("text/html; charset=utf-16", "Käuze".encode("utf-16"), "Käuze"),
        ("text/html; charset=rot13", "Käuze".encode(), "Käuze"),  # a codec of Python's that is no charset
        ("text/html; charset=punycode", "Käuze".encode(), "Käuze"),
        ('text/html; charset="none such"', b"\xef\xbb\xbfowls", "owls"),
        ("text/plain", b"<p>as it is</p>", "<p>as it is</p>"),
        ("application/json", b'{"owls": 7}', '{"owls": 7}'),
        ("application/ld+json; charset=utf-8", b"[]", "[]"),
        ("", b"<p>no type</p>", "no type"),
        ("text/html", b"broken \xff\xfe bytes", "broken \ufffd\ufffd bytes"),
    ],
)
async def test_text_is_decoded_as_it_says(
    site: WebSite, fetcher: PageFetcher, content_type: str, body: bytes, text: str
) -> None:
    """By the header, else by the page's own word, else as UTF-8; broken bytes are replaced."""
    site.page("/", body, *([f"Content-Type: {content_type}"] if content_type else []))
    assert readable(await fetcher.fetch(url(site, "/")))[1] == text


async def test_what_is_no_text_is_refused(site: WebSite, fetcher: PageFetcher) -> None:
    """An image is of no use to a model."""
    site.page("/", b"\x89PNG", "Content-Type: image/png")
    page = await fetcher.fetch(url(site, "/"))
    with pytest.raises(ToolError, match="is image/png, not text"):
        readable(page)


@pytest.mark.parametrize(
    "unit",
    ["<!--", "<a ", "<a b='", "</", "<?", "<!", "<![", "<![CDATA[", "<div>", '<a ="', "&#1", "<title>"],
)
async def test_a_hostile_page_costs_bounded_time(
    unit: str, fetcher: PageFetcher, site: WebSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markup on which the parser would work for minutes is given up on; the test's own time limit is the proof."""
    monkeypatch.setattr(page_module, "_PARSE_SECONDS", 0.1)
    site.page("/", (unit * (2**20 // len(unit))).encode(), HTML)
    title, _ = readable(await replace(fetcher, max_bytes=2**20).fetch(url(site, "/")))
    assert len(title) <= 300


async def test_a_redirect_is_followed(site: WebSite, fetcher: PageFetcher) -> None:
    """Also a relative one; the page knows where it came from."""
    site.redirect("/old", "/new")
    site.page("/new", b"here", HTML)
    page = await fetcher.fetch(url(site, "/old"))
    assert (page.url, page.body) == (url(site, "/new"), b"here")


async def test_redirects_in_a_circle_end(site: WebSite, fetcher: PageFetcher) -> None:
    """After five."""
    site.redirect("/", "/")
    with pytest.raises(ToolError, match="More than 5 redirects"):
        await fetcher.fetch(url(site, "/"))
    assert len(site.asked) == 5


async def test_a_large_page_is_cut(site: WebSite, fetcher: PageFetcher) -> None:
    """No more is read than the limit, whatever the server sends."""
    site.page("/", b"x" * 1_000_000, HTML)
    page = await fetcher.fetch(url(site, "/"))
    assert (len(page.body), page.truncated) == (10_000, True)


@pytest.mark.parametrize("path", ["/trickle", "/silent"])
async def test_a_page_that_takes_too_long_is_given_up(site: WebSite, fetcher: PageFetcher, path: str) -> None:
    """A byte now and then does not extend the time."""
    site.pages["/trickle"] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    site.pages["/silent"] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX: "
    with pytest.raises(ToolError, match=r"took longer than 0\.3 s"):
        await replace(fetcher, seconds=0.3).fetch(url(site, path))


async def test_a_compressed_page_is_refused(site: WebSite, fetcher: PageFetcher) -> None:
    """It was not asked for, and could be a bomb."""
    site.page("/", b"\x1f\x8b", HTML, "Content-Encoding: gzip")
    with pytest.raises(ToolError, match="compressed"):
        await fetcher.fetch(url(site, "/"))
    assert "accept-encoding: identity" in site.asked[0].lower()


@pytest.mark.parametrize(
    "answer",
    [
        b"",  # hangs up
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 302 Found\r\nLocation: http://[half\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: gopher://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_a_clear_refusal(site: WebSite, fetcher: PageFetcher, answer: bytes) -> None:
    """`ToolError` in every case."""
    site.pages["/"] = answer
    with pytest.raises(ToolError):
        await fetcher.fetch(url(site, "/"))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "owls",
        "file:///etc/passwd",
        "ftp://example.org/",
        "http://",
        "http:///path",
        "http://[::1",
        "http://user:secret@example.org/",
        "javascript:alert(1)",
        "http://x\0y/",
        "http://example.org:99999/",
        "http://example.org:0/",
        "http://example.org:-1/",
        f"http://example.org/{'a' * 100_000}",
    ],
)
async def test_what_is_no_web_address_is_refused(address: str) -> None:
    """Before anything is looked up."""

    async def never(host: str, _port: int) -> list[Address]:
        raise AssertionError(f"{host} was looked up")

    fetcher = PageFetcher(may_connect=lambda _: True, seconds=20, max_bytes=10_000, resolve=never)
    with pytest.raises(ToolError):
        await fetcher.fetch(address)


@pytest.mark.parametrize(
    ("host", "resolve"),
    [
        ("exa mple.org", known_as()),
        (f"{'a' * 64}.example", system_resolve),  # a label that is too long, for which nobody is asked
    ],
)
async def test_a_host_that_cannot_be_is_refused(host: str, resolve: Resolve) -> None:
    """By whoever looks it up, in words."""
    fetcher = PageFetcher(may_connect=lambda _: True, seconds=20, max_bytes=10_000, resolve=resolve)
    with pytest.raises(ToolError, match="There is no host"):
        await fetcher.fetch(f"http://{host}/")


async def test_a_redirect_to_no_port_is_refused(site: WebSite, fetcher: PageFetcher) -> None:
    """A number that is too large for one is the page's fault, and none of ours."""
    site.redirect("/", "http://127.0.0.1:99999/")
    with pytest.raises(ToolError, match="names a port that there cannot be"):
        await fetcher.fetch(url(site, "/"))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",  # the same as one number
        "0x7f.1",
        "0177.0.0.1",
        "0.0.0.0",  # noqa: S104 - an address to refuse
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "10.0.0.1",
        "169.254.169.254",
        "①②⑦.⓪.⓪.①",  # becomes 127.0.0.1 as a host's name
    ],
)
async def test_addresses_that_are_not_public_are_refused(site: WebSite, host: str) -> None:
    """However they are written; nothing is sent there."""
    fetcher = PageFetcher(may_connect=is_public, seconds=20, max_bytes=10_000)
    with pytest.raises(ToolError, match=r"not a public host|not an|no host"):
        await fetcher.fetch(url(site, "/", host))
    assert site.asked == []


async def test_every_redirect_is_checked(fetcher: PageFetcher, site: WebSite) -> None:
    """A page that may be fetched cannot send us to one that may not."""
    async with web_site("127.0.0.2") as secret:
        secret.page("/", b"secret", HTML)
        site.redirect("/", url(secret, "/", "127.0.0.2"))
        with pytest.raises(ToolError, match="not a public host"):
            await fetcher.fetch(url(site, "/"))
        assert secret.asked == []
    assert len(site.asked) == 1


async def test_the_connection_goes_to_the_address_that_was_checked(site: WebSite, fetcher: PageFetcher) -> None:
    """A name is looked up once; the server still sees the name that was asked for."""
    lookups: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[Address]:
        lookups.append((host, port))
        # A hostile name server: the first answer is fine, the next would be a private address.
        return [ip_address("127.0.0.1" if len(lookups) == 1 else "127.0.0.2")]

    site.page("/", b"here", HTML)
    page = await replace(fetcher, resolve=resolve).fetch(f"http://owls.example:{site.port}/")
    assert page.body == b"here"
    assert lookups == [("owls.example", site.port)]
    assert f"host: owls.example:{site.port}\r\n" in site.asked[0].lower()


async def test_a_host_with_one_private_address_is_refused(site: WebSite, fetcher: PageFetcher) -> None:
    """All of a name's addresses must be allowed."""
    asked = replace(fetcher, resolve=known_as(mixed="127.0.0.1 10.0.0.1", empty=""))
    for host in ("mixed.example", "empty.example"):
        with pytest.raises(ToolError, match=f"'{host}' is not a public host"):
            await asked.fetch(url(site, "/", host))
    with pytest.raises(ToolError, match=r"There is no host 'unknown\.example'"):
        await asked.fetch(url(site, "/", "unknown.example"))
    assert site.asked == []


async def test_a_name_service_that_is_away_for_a_moment_is_no_unknown_host(fetcher: PageFetcher) -> None:
    """Whoever polls an address asks again."""

    async def away(host: str, port: int) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with pytest.raises(Unreached, match=r"does not answer for 'owls\.example' now"):
        await replace(fetcher, resolve=away).fetch("https://owls.example/")


async def test_tls_is_spoken_with_the_host_that_was_asked_for(fetcher: PageFetcher) -> None:
    """The handshake names the host and not its address, so it is the host's certificate that is checked."""
    hello = asyncio.Queue[bytes]()

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        hello.put_nowait(await reader.read(2000))

    async with stream_server(listen) as port:
        with pytest.raises(ToolError, match="cannot be fetched"):
            await replace(fetcher, resolve=known_as(owls="127.0.0.1")).fetch(f"https://owls.example:{port}/")
    assert b"owls.example" in hello.get_nowait()


async def test_no_proxy_of_the_environment_is_used(
    site: WebSite, fetcher: PageFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would look names up itself, unchecked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    site.page("/", b"direct", HTML)
    assert (await fetcher.fetch(url(site, "/"))).body == b"direct"


async def test_no_cookie_is_kept(site: WebSite, fetcher: PageFetcher) -> None:
    """What one host sets is not told to another."""
    site.page("/", b"", "Set-Cookie: owl=7", "Location: /next", status="302 Found")
    site.page("/next", b"", HTML)
    await fetcher.fetch(url(site, "/"))
    assert all("cookie" not in request.lower() for request in site.asked)


async def test_the_module_refuses_this_machine(research: Module, site: WebSite) -> None:
    """Over real HTTP, as it is started by default."""
    reply = await research("fetch_webpage", url=url(site, "/"))
    assert reply["error"] == "'127.0.0.1' is not a public host; only pages of the public internet can be fetched."
    assert site.asked == []


async def test_the_module_can_be_allowed_private_networks(site: WebSite, tmp_path: Any) -> None:
    """`RESEARCH_ALLOW_PRIVATE=1`, for an intranet; `max_chars` cuts the text."""
    site.page("/", b"<title>Owls</title><body>" + b"owl " * 100, HTML)
    with serving_here("research", tmp_path, RESEARCH_ALLOW_PRIVATE=1) as module:
        reply = await module("fetch_webpage", url=url(site, "/"), max_chars=7)
    assert reply["result"] == {"url": url(site, "/"), "title": "Owls", "text": "owl owl", "truncated": True}
