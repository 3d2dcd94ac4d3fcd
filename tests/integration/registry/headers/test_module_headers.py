"""`TOOLFLEET_MODULE_HEADERS`: what may be set, that no value of it is shown, and where looks at modules carry it."""

import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from support.module_server import serve
from support.modules.raw_module import answering, http, raw_module
from support.owls import make_module
from toolfleet_registry.directory.entries import ADDED, SETTINGS, ModuleEntry
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.headers import HIDDEN, ModuleHeaders, headers_by_module
from toolfleet_registry.manifests.discovery import ManifestFailure, discover
from toolfleet_registry.settings import Settings, load_settings

SECRET = "t0p/s3cret+token"
BEARER = {"Authorization": f"Bearer {SECRET}"}
SIGNING_KEY = "a secret of more than thirty-two characters"

pytestmark = pytest.mark.usefixtures("elsewhere")


def set_to(monkeypatch: pytest.MonkeyPatch, value: Any) -> Settings:
    monkeypatch.setenv("TOOLFLEET_MODULE_HEADERS", value if isinstance(value, str) else json.dumps(value))
    return load_settings()


def settings(fields: dict[str, str], **more: Any) -> Settings:
    given: Any = {"owls": fields}
    return Settings(module_headers=given, **more)


def headers(fields: dict[str, str]) -> ModuleHeaders:
    return headers_by_module(settings(fields).module_headers)["owls"]


def test_they_come_from_the_environment_or_the_file(monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    """As JSON, or as a table."""
    (elsewhere / "toolfleet.toml").write_text(f'[module_headers.owls]\nAuthorization = "Bearer {SECRET}"\n')
    assert load_settings().module_headers["owls"]["Authorization"].get_secret_value() == f"Bearer {SECRET}"
    assert set_to(monkeypatch, {"git": {"X-Key": "1"}}).module_headers.keys() == {"git"}


def test_a_value_is_in_no_repr_and_no_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the settings, nor of what is made of them."""
    found = set_to(monkeypatch, {"owls": BEARER})
    shown = f"{found!r} {found} {found.model_dump()} {found.model_dump_json()} {headers(BEARER)!r}"

    assert SECRET not in shown
    assert "ModuleHeaders(Authorization)" in shown


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"owls": {"Authorization": "Bearer t0p/s3cret+token"', "must be JSON (Expecting"),
        (f'"{SECRET}"', "must be JSON such as"),
        ({"owls": f"Bearer {SECRET}"}, "what module 'owls' has is no such object"),
        ({f"owls {SECRET}": BEARER}, "a module's name may have letters, digits, '_' and '-' only"),
        ({"owls": {f"Bearer {SECRET}": "Authorization"}}, "module 'owls' has a header whose name no header can have"),
        ({"owls": {"": SECRET}}, "module 'owls' has a header whose name no header can have"),
        ({"owls": {"X-Key": [SECRET]}}, "header 'X-Key' of module 'owls' needs a text as its value"),
        ({"owls": {"X-Key": ""}}, "header 'X-Key' of module 'owls' has an empty value"),
        ({"owls": {"X-Key": f"{SECRET}\r\nHost: evil"}}, "has a line break or a null byte in its value"),
        ({"owls": {"X-Key": f"{SECRET}\n"}}, "has a line break or a null byte in its value"),
        ({"owls": {"X-Key": f"{SECRET} "}}, "a blank at an end"),
        ({"owls": {"X-Key": f"{SECRET}ä"}}, "other than visible ASCII characters"),
        ({"owls": {"X-Key": SECRET * 1000}}, "has a value of more than 8192 characters"),
        ({"owls": {**BEARER, "authorization": SECRET}}, "is there twice"),
        ({"owls": {"toolfleet-Caller": SECRET}}, "is not to be set: the fleet sends it itself"),
        ({"owls": {"Idempotency-Key": SECRET}}, "is not to be set: the fleet sends it itself"),
        *(
            ({"owls": {name: SECRET}}, "is not to be set: it is the protocol's own")
            for name in ("Host", "content-length", "Transfer-Encoding", "Connection", "Upgrade")
        ),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(value: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting, and shows nothing that may be a token."""
    with pytest.raises(SettingsError) as caught:
        set_to(monkeypatch, value)
    trace = "".join(traceback.format_exception(caught.value))

    assert str(caught.value).startswith("TOOLFLEET_MODULE_HEADERS: ")
    assert reason in str(caught.value)
    assert SECRET not in trace


async def test_a_look_bears_the_token() -> None:
    """Without it, the error says what an operator can do; with a wrong one, too, and it is quoted nowhere."""
    with serve(make_module()) as owls:
        owls.token = SECRET
        looks = [
            (await discover({"owls": owls.url}, timeout_seconds=10, max_bytes=2**20, headers=sent))["owls"]
            for sent in ({"owls": headers(BEARER)}, {}, {"owls": headers({"Authorization": "Bearer wr0ng-token"})})
        ]
    assert not isinstance(looks[0], ManifestFailure)
    assert looks[1] == ManifestFailure(
        "answered with status 401; if it wants a token, give the workers a header for it in TOOLFLEET_MODULE_HEADERS",
        401,
    )
    assert looks[2] == ManifestFailure(
        "answered with status 401; it does not accept what TOOLFLEET_MODULE_HEADERS has for it: "
        "correct that where the workers run, and restart them",
        401,
    )


async def test_it_counts_more_than_the_password_of_a_url() -> None:
    """There is one `Authorization` then."""
    with serve(make_module()) as owls:
        url = owls.url.replace("http://", "http://me:s3cret@")
        await discover(
            {"owls": url},
            timeout_seconds=10,
            max_bytes=2**20,
            headers={"owls": headers({"authorization": f"Bearer {SECRET}"})},
        )
        assert owls.visits == [("/manifest", f"Bearer {SECRET}")]


async def test_a_redirect_carries_it_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """It is not followed; nor does a reply that quotes the token, and is no HTTP, get into an error."""
    caplog.set_level(logging.DEBUG)
    with serve(make_module()) as elsewhere:
        away = answering(http(b"", "302 Found", f"Location: {elsewhere.url}/manifest"))
        async with raw_module(away) as moved, raw_module(answering(f"{SECRET}\r\n\r\n".encode())) as odd:
            services = {"owls": moved.url, "odd": odd.url}
            sent = {"owls": headers(BEARER), "odd": headers(BEARER)}
            looks = await discover(services, timeout_seconds=10, max_bytes=2**20, headers=sent)
        assert elsewhere.visits == []
    assert moved.requests[0].headers["authorization"] == BEARER["Authorization"]
    assert looks["owls"] == ManifestFailure("answered with status 302; redirects are not followed", 302)
    assert SECRET not in f"{looks} {caplog.text}"


@pytest.mark.parametrize(
    "quoted",
    [f"You said Bearer {SECRET}", f"token {SECRET}", "token t0p\\/s3cret+token"],
    ids=["all", "token", "escaped"],
)
def test_what_a_module_quotes_is_hidden(quoted: str) -> None:
    """The whole value, the token of it, and as JSON may have it; a text without it is the same object."""
    own, harmless = headers(BEARER), b"t0p"

    assert own.hide_text(quoted).endswith(HIDDEN)
    assert own.hide(harmless) is harmless


@pytest.mark.parametrize(
    ("origin", "key", "is_sent"),
    [(SETTINGS, None, False), (SETTINGS, SIGNING_KEY, True), (ADDED, None, True)],
    ids=["an unsigned directory", "a signed one", "an entry that counts less than the settings"],
)
def test_who_can_write_to_redis_gets_no_token(origin: str, key: str | None, is_sent: bool) -> None:
    """To an address in the place of the settings' it goes only where entries are signed."""
    services = {"owls": "http://owls.test"}
    modules = KnownModules(settings(BEARER, module_services=services, signing_key=key))
    modules.take({"owls": ModuleEntry(module="owls", url="http://evil.test", origin=origin)})

    assert ("owls" in modules.headers) is is_sent
    modules.take({})
    assert modules.headers == {"owls": headers(BEARER)}


def test_an_added_module_has_its_headers() -> None:
    """They may be set before it is there."""
    modules = KnownModules(settings(BEARER))
    modules.take({"owls": ModuleEntry(module="owls", url="http://owls.test")})

    assert modules.headers == {"owls": headers(BEARER)}
