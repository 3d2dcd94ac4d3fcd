"""Discovery against real servers that misbehave in every way we could think of, and of very many modules."""

import asyncio
import contextlib
import gzip
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.modules.raw_modules import (
    Behaviour,
    answering,
    manifest_of,
    noting,
    offering,
    raw_module,
    trickling,
    writing,
)
from toolfleet_registry.admission_rules import admit
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.manifests import discovery
from toolfleet_registry.manifests.discovery import DiscoveryResult, ManifestFailure, discover
from toolfleet_registry.schemas.definition import unknown_types
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control.fleet_tasks import REFRESH

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
    """`GET /manifest` below its URL's path, with nothing in it that would let the answer come as something we cannot read."""
    heads = list[bytes]()
    with capture_logs() as logs:
        async with raw_module(noting(heads, answering(GOOD))) as git, raw_module(offering("mail", "a", "b")) as mail:
            services = {"git": f"{git}/modules/git", "mail": mail}
            found = await discover(services, timeout_seconds=10, max_bytes=MAX_BYTES)
    assert heads[0].startswith(b"GET /modules/git/manifest HTTP/1.1\r\n")
    assert b"accept-encoding: gzip, deflate\r\n" in heads[0].lower()
    assert [type(look) for look in found.values()] == [ModuleManifest, ModuleManifest]
    assert sorted(logs, key=lambda entry: entry["module"]) == [
        {"event": "module_discovered", "log_level": "info", "module": "git", "tools": 1, "status": 200},
        {"event": "module_discovered", "log_level": "info", "module": "mail", "tools": 2, "status": 200},
    ]


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


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (answering(GOOD[:-1]), "manifest is not JSON"),
        (answering(b'"text"'), "not a JSON object"),
        (answering(gzip.compress(bytes(50 * 2**20)), headers={"content-encoding": "gzip"}), "larger than"),
        (answering(GOOD, headers={"content-encoding": "br"}), "content encoding 'br'"),
        (offering("mail", "send"), "is that of module 'mail', not of 'git'"),
    ],
)
async def test_a_manifest_that_cannot_be_accepted_is_a_manifest_error(behave: Behaviour, reason: str) -> None:
    """The error says what is wrong with its encoding, its JSON or its content."""
    found, log = await failure_of(behave)
    assert reason in found.error
    assert found.status == 200
    assert log["event"] == "module_manifest_error"


@pytest.mark.parametrize(
    "behave",
    [
        writing(b""),  # closed at once
        writing(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"module_name":'),  # closed half way
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
            seconds=0.4,
        )
    assert set(found.values()) == {ManifestFailure("no complete manifest within 0.4 s")}
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
    async with raw_module(noting(heads, answering(GOOD, headers={"set-cookie": "a=b; path=/"}))) as url:
        for _ in range(2):
            await discover({"git": url, "mail": url}, timeout_seconds=10, max_bytes=MAX_BYTES)
    assert len(heads) == 4
    assert not any(b"cookie:" in head.lower() for head in heads)


async def test_a_password_in_a_url_is_sent_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Basic authentication reaches the module; no log shows it."""
    heads = list[bytes]()
    caplog.set_level(logging.DEBUG)
    async with raw_module(noting(heads, answering(GOOD))) as url:
        await discover({"git": url.replace("http://", "http://me:s3cret@")}, timeout_seconds=10, max_bytes=MAX_BYTES)
    assert b"Basic bWU6czNjcmV0\r\n" in heads[0]
    assert "s3cret" not in caplog.text


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

    assert app.tasks[REFRESH].soft_time_limit == 3 * 10 + 20
