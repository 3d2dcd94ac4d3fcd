"""How an issuer's keys are had: rarely, within bounds, and for longer than the issuer is there."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from support.servers.toy_issuer import ToyIssuer, jwk_of, private_key
from support.waiting import wait_until
from toolfleet_gateway.auth import tokens
from toolfleet_gateway.auth.identity import AuthRefused
from toolfleet_gateway.auth.tokens import PAUSE_SECONDS, REFRESH_SECONDS, IssuerKeys

SERVER, OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"


async def test_keys_are_asked_for_once(issuer: ToyIssuer, keys: IssuerKeys) -> None:
    """However many need them at once."""
    found = await asyncio.gather(*(keys.find("rsa-1", "RS256") for _ in range(50)))

    assert all(each is not None for each in found)
    assert (issuer.asked_for(SERVER), issuer.asked_for("/keys")) == (1, 1)


async def test_an_openid_provider_has_its_metadata_elsewhere(issuer: ToyIssuer, keys: IssuerKeys) -> None:
    """It is asked there if it has none of RFC 8414."""
    del issuer.site.pages[SERVER]
    issuer.publish(metadata=OPENID)

    assert await keys.find("ec-1", "ES256")
    assert issuer.asked_for(OPENID) == 1


async def test_the_path_of_an_issuer_is_in_its_metadatas(issuer: ToyIssuer) -> None:
    """In one in the middle, in the other at the beginning."""
    url = f"{issuer.url}/realms/acme"
    document = json.dumps({"issuer": url, "jwks_uri": issuer.jwks_url}).encode()
    for path in (f"{SERVER}/realms/acme", f"/realms/acme{OPENID}"):
        issuer.site.pages = {"/keys": issuer.site.pages["/keys"]}
        issuer.site.page(path, document)
        keys = IssuerKeys(url, jwks_url=None, algorithms={"RS256"})
        assert await keys.find("rsa-1", "RS256")


async def test_keys_may_be_at_a_given_place(issuer: ToyIssuer) -> None:
    """Then no metadata are asked for."""
    keys = IssuerKeys(issuer.url, jwks_url=issuer.jwks_url, algorithms={"RS256"})

    assert await keys.find("rsa-1", "RS256")
    assert issuer.asked_for(SERVER) == 0


async def test_a_new_key_is_taken_up(issuer: ToyIssuer, keys: IssuerKeys, later: SimpleNamespace) -> None:
    """With the first token of it; and one that is withdrawn counts no more once the keys are read anew."""
    await keys.find("rsa-1", "RS256")
    issuer.add_key("rsa-2", "RS256", 2)
    issuer.withdraw("rsa-1")
    later.seconds = PAUSE_SECONDS + 1

    assert await keys.find("rsa-2", "RS256")
    assert await keys.find("rsa-1", "RS256") is None


async def test_unknown_keys_are_asked_for_rarely(issuer: ToyIssuer, keys: IssuerKeys, later: SimpleNamespace) -> None:
    """A flood of invented key ids is one question in ten seconds."""
    await keys.find("rsa-1", "RS256")
    assert set(await asyncio.gather(*(keys.find(f"x-{number}", "RS256") for number in range(200)))) == {None}
    assert issuer.asked_for("/keys") == 1

    later.seconds = PAUSE_SECONDS + 1
    await asyncio.gather(*(keys.find(f"y-{number}", "RS256") for number in range(200)))
    assert issuer.asked_for("/keys") == 2


async def test_old_keys_are_read_anew_beside_requests(
    issuer: ToyIssuer, keys: IssuerKeys, later: SimpleNamespace
) -> None:
    """Nobody waits for that; a key that was withdrawn is gone then."""
    await keys.find("rsa-1", "RS256")
    issuer.add_key("rsa-2", "RS256", 2)
    issuer.withdraw("rsa-1")
    later.seconds = REFRESH_SECONDS + 1

    assert await keys.find("rsa-1", "RS256")
    await wait_until(lambda: keys._fitting("rsa-1", "RS256") is None, "the key is gone")


async def test_an_issuer_that_is_away_is_not_needed(
    issuer: ToyIssuer, keys: IssuerKeys, later: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its known keys count as before, for as long as it takes; it is asked now and then."""
    monkeypatch.setattr(tokens, "_AWAY_SECONDS", 0.02)
    await keys.find("rsa-1", "RS256")
    issuer.go_away()
    for number in range(1, 5):
        later.seconds = number * REFRESH_SECONDS * 2
        assert await keys.find("rsa-1", "RS256")
        assert await keys.find("x", "RS256") is None
    issuer.publish()
    later.seconds += REFRESH_SECONDS
    assert await keys.find("ec-1", "ES256")


def _metadata(toy: ToyIssuer, **changed: object) -> bytes:
    return json.dumps({"issuer": toy.url, "jwks_uri": toy.jwks_url, **changed}).encode()


def _huge(issuer: ToyIssuer) -> None:
    issuer.site.page("/keys", b'{"keys":["' + b"x" * 300_000 + b'"]}')


def _short_keys(issuer: ToyIssuer) -> None:
    issuer.site.page("/keys", json.dumps({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "rsa-1"}]}).encode())


WRONG: dict[str, Callable[[ToyIssuer], None]] = {
    "away": ToyIssuer.go_away,
    "nothing": lambda issuer: issuer.site.pages.clear(),
    "another issuer": lambda issuer: issuer.site.page(SERVER, _metadata(issuer, issuer="https://evil.example")),
    "keys without TLS": lambda issuer: issuer.site.page(SERVER, _metadata(issuer, jwks_uri="http://evil.example/keys")),
    "keys in a file": lambda issuer: issuer.site.page(SERVER, _metadata(issuer, jwks_uri="file:///etc/passwd")),
    "keys nowhere": lambda issuer: issuer.site.page(SERVER, _metadata(issuer, jwks_uri=None)),
    "metadata that are no JSON": lambda issuer: issuer.site.page(SERVER, b"<html>"),
    "metadata that are a list": lambda issuer: issuer.site.page(SERVER, b"[]"),
    "keys that are elsewhere": lambda issuer: issuer.site.redirect("/keys", f"{issuer.url}/other"),
    "keys that are no list": lambda issuer: issuer.site.page("/keys", b'{"keys": {"a": 1}}'),
    "keys that are nothing": lambda issuer: issuer.site.page("/keys", b'{"keys": [1, null, {}, {"kty": []}]}'),
    "huge": _huge,
    "deep": lambda issuer: issuer.site.page("/keys", b"[" * 10_000),
    "keys that are too short": _short_keys,
}


@pytest.mark.parametrize("break_it", WRONG.values(), ids=WRONG.keys())
async def test_without_keys_nobody_can_say_anything(
    issuer: ToyIssuer,
    keys: IssuerKeys,
    later: SimpleNamespace,
    break_it: Callable[[ToyIssuer], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is 503, not 401: the token may be good. Once the issuer is well again its tokens are."""
    monkeypatch.setattr(tokens, "_AWAY_SECONDS", 0.02)
    break_it(issuer)
    with pytest.raises(AuthRefused) as refused:
        await keys.find("rsa-1", "RS256")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")

    issuer.publish()
    later.seconds = 2
    assert await keys.find("rsa-1", "RS256")


@pytest.mark.parametrize("has_keys", [False, True], ids=["at its start", "later"])
async def test_an_issuer_that_is_back_is_asked(
    issuer: ToyIssuer, keys: IssuerKeys, later: SimpleNamespace, *, has_keys: bool
) -> None:
    """A request of an unknown key that comes a moment after one in vain waits, and is no error; however many come, it is one question."""
    if has_keys:
        await keys.find("ec-1", "ES256")
        later.seconds = PAUSE_SECONDS + 1
    issuer.go_away()
    with contextlib.suppress(AuthRefused):
        assert await keys.find("rsa-2", "RS256") is None
    issuer.add_key("rsa-2", "RS256", 2)
    asked = issuer.asked_for(SERVER)

    assert all(await asyncio.gather(*(keys.find("rsa-2", "RS256") for _ in range(20))))
    assert issuer.asked_for(SERVER) == asked + 1


@pytest.mark.parametrize("path", ["/silent", "/trickle"])
async def test_an_issuer_that_never_ends_is_left(issuer: ToyIssuer, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """After a bounded time, whether it says nothing or goes on for ever."""
    monkeypatch.setattr(tokens, "_DOCUMENT_SECONDS", 0.3)
    issuer.site.pages[path] = b"HTTP/1.1 200 OK\r\n\r\n"
    keys = IssuerKeys(issuer.url, jwks_url=f"{issuer.url}{path}", algorithms={"RS256"})

    with pytest.raises(AuthRefused, match="cannot be read"):
        await keys.find("rsa-1", "RS256")


async def test_a_key_counts_for_its_own_algorithm(issuer: ToyIssuer, keys: IssuerKeys) -> None:
    """And what is not for signatures counts for none."""
    rsa, curve = private_key("RS256"), private_key("ES256")
    listed = [
        jwk_of("one", "RS256", rsa, alg="RS256"),
        jwk_of("encrypts", "RS256", rsa, use="enc"),
        jwk_of("signs", "RS256", rsa, key_ops=["sign"]),
        jwk_of("curve", "ES256", curve),
        jwk_of("other", "ES384", private_key("ES384")),  # which the settings do not allow
        jwk_of("ed", "EdDSA", private_key("EdDSA")),
    ]
    issuer.site.page("/keys", json.dumps({"keys": listed}).encode())

    assert await keys.find("one", "RS256")
    assert await keys.find("curve", "ES256")
    assert await keys.find("ed", "EdDSA")
    for key_id, algorithm in (
        ("one", "ES256"),
        ("one", "PS256"),
        ("encrypts", "RS256"),
        ("signs", "RS256"),
        ("curve", "RS256"),
        ("other", "ES384"),
    ):
        assert await keys.find(key_id, algorithm) is None
