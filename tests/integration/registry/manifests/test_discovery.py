"""Discovery against real servers that misbehave in every way we could think of."""

import asyncio
import contextlib
import gc
import gzip
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.modules.raw_modules import Behaviour, answering, manifest_of, offering, raw_module, trickling, writing
from toolfleet_registry.admission_rules import admit
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.manifests import discovery
from toolfleet_registry.manifests.discovery import DiscoveryResult, ManifestFailure, discover
from toolfleet_registry.schemas.definition import unknown_types

MAX_BYTES = 100_000
GOOD = json.dumps(manifest_of("git", "push")).encode()


async def look_at(
    modules: Mapping[str, Behaviour], *, seconds: float = 10, max_bytes: int = MAX_BYTES
) -> dict[str, DiscoveryResult]:
    async with contextlib.AsyncExitStack() as stack:
        services = {name: await stack.enter_async_context(raw_module(behave)) for name, behave in modules.items()}
        return await discover(services, timeout_seconds=seconds, max_bytes=max_bytes)


async def failure_of(behave: Behaviour) -> tuple[ManifestFailure, dict[str, Any]]:
    """What becomes of a module `git` that does this, and the one thing logged about it."""
    with capture_logs() as logs:
        found = (await look_at({"git": behave}))["git"]
    assert isinstance(found, ManifestFailure)
    assert len(logs) == 1
    return found, dict(logs[0])


async def test_every_module_is_asked_for_its_manifest() -> None:
    """`GET /manifest`, with nothing in it that would let the answer come as something we cannot read."""
    heads = list[bytes]()

    async def remember(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await answering(GOOD)(head, writer)

    with capture_logs() as logs:
        found = await look_at({"git": remember, "mail": offering("mail", "send", "read")})

    assert heads[0].startswith(b"GET /manifest HTTP/1.1\r\n")
    assert b"accept-encoding: gzip, deflate\r\n" in heads[0].lower()
    assert [type(look) for look in found.values()] == [ModuleManifest, ModuleManifest]
    assert sorted(logs, key=lambda entry: entry["module"]) == [
        {"event": "module_discovered", "log_level": "info", "module": "git", "tools": 1, "status": 200},
        {"event": "module_discovered", "log_level": "info", "module": "mail", "tools": 2, "status": 200},
    ]


async def test_a_base_url_may_have_a_path() -> None:
    """Modules behind one gateway differ by their path."""
    heads = list[bytes]()

    async def remember(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await answering(GOOD)(head, writer)

    async with raw_module(remember) as url:
        found = await discover({"git": f"{url}/modules/git"}, timeout_seconds=10, max_bytes=MAX_BYTES)
    assert isinstance(found["git"], ModuleManifest)
    assert heads[0].startswith(b"GET /modules/git/manifest ")


@pytest.mark.parametrize("status", ["500 Internal Server Error", "404 Not Found", "204 No Content", "206 Partial"])
async def test_any_status_but_200_is_a_manifest_error(status: str) -> None:
    """Whatever the body says."""
    behave = answering(b"" if status.startswith("204") else GOOD, status=status)
    found, log = await failure_of(behave)
    code = int(status[:3])
    assert found == ManifestFailure(f"answered with status {code}", code)
    assert log == {
        "event": "module_manifest_error",
        "log_level": "warning",
        "module": "git",
        "status": code,
        "error": found.error,
    }


async def test_a_redirect_is_not_followed() -> None:
    """A module cannot send us to another host, or to another module."""
    asked = list[bytes]()

    async def target(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head)
        await answering(GOOD)(head, writer)

    async with raw_module(target) as url:
        found, _ = await failure_of(answering(b"", status="302 Found", headers={"location": f"{url}/manifest"}))
    assert found == ManifestFailure("answered with status 302; redirects are not followed", 302)
    assert not asked


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (answering(b"<html>hello</html>", headers={"content-type": "text/html"}), "manifest is not JSON"),
        (answering(b""), "manifest is not JSON"),
        (answering(b'"text"'), "not a JSON object"),
        (answering(GOOD[:-1]), "manifest is not JSON"),
        (answering(b'{"module_name": "git", "tools": [], "limit": NaN}'), "NaN"),
        (answering(b"[" * 50_000), "nested deeper"),
        (answering(b"x" * (MAX_BYTES + 1)), f"larger than {MAX_BYTES} bytes"),
        (answering(gzip.compress(bytes(50 * 2**20)), headers={"content-encoding": "gzip"}), "larger than"),
        (answering(GOOD, headers={"content-encoding": "br"}), "content encoding 'br'"),
        (answering(GOOD, headers={"content-encoding": "gzip"}), "not valid gzip"),
        (offering("mail", "send"), "is that of module 'mail', not of 'git'"),
        (answering(json.dumps({**manifest_of("mail", "send"), "module_name": "git"}).encode()), "'mail.send'"),
        (offering("git", "push", "push"), "tool 'git.push' is listed twice"),
    ],
)
async def test_a_manifest_that_cannot_be_accepted_is_a_manifest_error(behave: Behaviour, reason: str) -> None:
    """The error says what is wrong with it."""
    found, log = await failure_of(behave)
    assert reason in found.error
    assert found.status == 200
    assert log["event"] == "module_manifest_error"


@pytest.mark.parametrize(
    "behave",
    [
        writing(b""),  # closed at once
        writing(b"HTTP/1.1 200 OK\r\nconte"),  # closed in the headers
        writing(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"module_name":'),  # closed half way
        writing(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"),
        writing(b"SSH-2.0-OpenSSH_9.6\r\n"),  # not HTTP at all
        writing(b"x" * 50_000 + b"\r\n\r\n"),  # nor this, which the error does not repeat
        writing(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000),  # headers without end
    ],
)
async def test_a_broken_connection_is_an_unreachable_module(behave: Behaviour) -> None:
    """There is no status, and the error is never empty."""
    found, log = await failure_of(behave)
    assert 0 < len(found.error) <= 300
    assert found.status is None
    seen = {"event": "module_unreachable", "log_level": "warning", "module": "git", "status": None}
    assert log == {**seen, "error": found.error}


async def test_a_module_that_is_not_there_is_unreachable() -> None:
    """Refused connections and names that do not resolve."""
    async with raw_module(writing(b"")) as gone:
        pass
    found = await discover(
        {"git": gone, "mail": "http://no-such-host.invalid", "odd": f"http://{'x' * 70}.example"},
        timeout_seconds=10,
        max_bytes=MAX_BYTES,
    )
    assert all(isinstance(look, ManifestFailure) and look.status is None and look.error for look in found.values())


async def never(_: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def test_the_deadline_is_total() -> None:
    """A byte now and then does not extend it."""
    with capture_logs() as logs:
        found = await look_at(
            {
                "silent": never,
                "headers": trickling(b"HTTP/1.1 200 OK\r\nx-header: ", b"a"),
                "body": trickling(b"HTTP/1.1 200 OK\r\n\r\n", b" "),
                "soon": trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            },
            seconds=2,
        )
    assert set(found.values()) == {ManifestFailure("no complete manifest within 2 s")}
    assert [entry["event"] for entry in logs] == ["module_unreachable"] * 4


async def test_all_modules_are_asked_at_once() -> None:
    """A hundred and fifty that are all waited for together keep nothing from the good one."""
    waiting = 0
    all_asked = asyncio.Event()

    async def wait_for_all(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 150:
            all_asked.set()
        await all_asked.wait()

    async with raw_module(wait_for_all) as dead, raw_module(offering("git", "push")) as alive:
        services = {**{f"dead{n}": dead for n in range(150)}, "git": alive}
        found = await discover(services, timeout_seconds=60, max_bytes=MAX_BYTES)
    assert isinstance(found["git"], ModuleManifest)
    assert list(found) == list(services)
    assert all_asked.is_set()


async def test_one_module_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with an error that nobody thought of."""

    def broken(module: str, document: Any) -> ModuleManifest:
        if module == "mail":
            raise ZeroDivisionError("surprise")
        return admit(module, document)

    monkeypatch.setattr(discovery, "admit", broken)
    with capture_logs() as logs:
        found = await look_at({"mail": offering("mail", "send"), "git": offering("git", "push")})
    assert found["mail"] == ManifestFailure("ZeroDivisionError: surprise")
    assert isinstance(found["git"], ModuleManifest)
    assert {entry["event"] for entry in logs} == {"module_look_failed", "module_unreachable", "module_discovered"}


async def test_unknown_fields_are_ignored_with_one_warning() -> None:
    """Modules are deployed at other times than we are."""
    manifest = manifest_of("git", "push", "pull", build="abc")
    for tool in manifest["tools"]:
        tool["icon"] = "x"
    with capture_logs() as logs:
        found = await look_at({"git": answering(json.dumps(manifest).encode())})
    assert isinstance(found["git"], ModuleManifest)
    assert [entry for entry in logs if entry["log_level"] == "warning"] == [
        {
            "event": "manifest_fields_ignored",
            "log_level": "warning",
            "module": "git",
            "fields": ["build", "tools[].icon"],
        }
    ]


async def test_an_unknown_permission_is_reported() -> None:
    """The module is discovered; its closed tool is named in a warning."""
    manifest = manifest_of("git", "push", "pull")
    manifest["tools"][0]["required_permission"] = "root"
    with capture_logs() as logs:
        found = await look_at({"git": answering(json.dumps(manifest).encode())})
    assert isinstance(found["git"], ModuleManifest)
    assert [entry["event"] for entry in logs] == ["module_discovered", "tools_closed"]
    assert logs[1]["tools"] == {"git.push": "it needs the unknown permission 'root'"}


async def test_types_that_mean_nothing_are_reported_once() -> None:
    """For all tools of a module. A large manifest is looked through in a thread, whatever is looked for."""
    manifest = manifest_of("git", "push", "pull")
    for tool in manifest["tools"]:
        tool["parameters"] = [{"name": f"p{n}", "type": f"geo:point{n}"} for n in range(10_000)]
    threads = list[str]()

    def look_through(*args: Any, **named: Any) -> list[str]:
        threads.append(threading.current_thread().name)
        return unknown_types(*args, **named)

    with capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "unknown_types", look_through)
        body = json.dumps(manifest).encode()
        found = await look_at({"git": answering(body)}, max_bytes=len(body))
    assert isinstance(found["git"], ModuleManifest)
    (types,) = [entry["types"] for entry in logs if entry["event"] == "parameter_types_unknown"]
    assert types == [f"p{n}: geo:point{n}" for n in range(20)]
    assert threads != [threading.main_thread().name]


async def test_a_cost_that_nobody_knows_is_reported() -> None:
    """It counts as expensive, which its module should hear of."""
    manifest = manifest_of("git", "push", "pull", "log")
    for tool, cost in zip(manifest["tools"], ["gigantic", "cheap", "gigantic"], strict=True):
        tool["cost"] = cost
    with capture_logs() as logs:
        await look_at({"git": answering(json.dumps(manifest).encode())})

    (warning,) = [entry for entry in logs if entry["event"] == "costs_unknown"]
    assert (warning["module"], warning["costs"]) == ("git", ["gigantic"])


async def test_the_environment_sends_no_request_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy set for other programs is not used."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    found = await look_at({"git": answering(GOOD)})
    assert isinstance(found["git"], ModuleManifest)


async def test_no_cookie_reaches_another_module_of_the_same_host() -> None:
    """Cookies know no ports."""
    heads = list[bytes]()

    async def first(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await answering(GOOD, headers={"set-cookie": "a=b; path=/"})(head, writer)

    async with raw_module(first) as url:
        services = {"git": url, "mail": url}
        await discover(services, timeout_seconds=10, max_bytes=MAX_BYTES)
        await discover(services, timeout_seconds=10, max_bytes=MAX_BYTES)
    assert len(heads) == 4
    assert not any(b"cookie:" in head.lower() for head in heads)


async def test_a_password_in_a_url_is_sent_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Basic authentication reaches the module; no log shows it."""
    heads = list[bytes]()

    async def remember(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await answering(GOOD)(head, writer)

    caplog.set_level(logging.DEBUG)
    async with raw_module(remember) as url:
        await discover({"git": url.replace("http://", "http://me:s3cret@")}, timeout_seconds=10, max_bytes=MAX_BYTES)
    assert b"Basic bWU6czNjcmV0\r\n" in heads[0]
    assert "s3cret" not in caplog.text


async def test_an_https_module_that_speaks_no_tls_is_unreachable() -> None:
    """Its socket is closed when the time is over."""
    async with raw_module(never) as url:
        services = {"git": url.replace("http:", "https:")}
        found = await discover(services, timeout_seconds=1, max_bytes=MAX_BYTES)
    assert found["git"] == ManifestFailure("no connection within 0.5 s")
    gc.collect()  # a socket left open would warn, which is an error


async def test_no_modules_are_quickly_asked() -> None:
    """Nothing to do is no error."""
    assert await discover({}, timeout_seconds=10, max_bytes=MAX_BYTES) == {}
