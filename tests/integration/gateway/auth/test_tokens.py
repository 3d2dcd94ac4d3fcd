"""Which tokens are good: those that the issuer has signed, for this gateway, and for now."""

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jwt
import pytest

from support.servers.toy_issuer import AUDIENCE, ToyIssuer, encoded, forged, jwk_of, private_key
from support.waiting import wait_until
from toolfleet_gateway.auth import tokens
from toolfleet_gateway.auth.identity import AuthRefused
from toolfleet_gateway.auth.tokens import REFRESH_SECONDS, TokenVerifier

Forge = Callable[[ToyIssuer], str]


def now_of(claims: dict[str, Any]) -> dict[str, Any]:
    """Those that depend on the time, at this moment."""
    return {name: value() if callable(value) else value for name, value in claims.items()}


@pytest.mark.parametrize("key_id", ["rsa-1", "ec-1"])
async def test_a_good_token_says_who_it_is(issuer: ToyIssuer, verifier: TokenVerifier, key_id: str) -> None:
    """By its claims, whichever of its keys the issuer has used."""
    found = await verifier.verify(
        issuer.token(key_id, toolfleet_permission="user", toolfleet_modules=["owls"], toolfleet_role="viewer")
    )

    assert (found.caller.user_id, found.caller.permission, found.role) == ("ada", "user", "viewer")
    assert found.caller.allowed_modules == frozenset({"owls"})
    assert (found.subject, found.key_id, found.acts_for_others) == ("ada", None, False)
    assert found.expires_at == pytest.approx(time.time() + 330, abs=60)


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": ["someone", "other"]},  # one of several
        {"nbf": None, "iat": None},
        {"exp": lambda: time.time() - 20},  # within the leeway
        {"nbf": lambda: time.time() + 20},
        {"exp": lambda: time.time() + 300.5},  # no whole number
        *({"header": {"typ": kind}} for kind in ("JWT", "jwt", "at+jwt", "application/at+jwt")),
    ],
)
async def test_a_token_may_differ(issuer: ToyIssuer, verifier: TokenVerifier, changed: dict[str, Any]) -> None:
    """As the standard has it, and by as much as clocks do."""
    assert (await verifier.verify(issuer.token(**now_of(changed)))).caller.user_id == "ada"


def _of_another_key(issuer: ToyIssuer) -> str:
    return jwt.encode(issuer.claims(), private_key("RS256", 9), "RS256", headers={"kid": "rsa-1"})


def _changed_claims(issuer: ToyIssuer) -> str:
    head, _, signature = issuer.token().split(".")
    return f"{head}.{encoded(issuer.claims(sub='eve'))}.{signature}"


def _confused(issuer: ToyIssuer) -> str:
    """The public key, which everybody has, taken for a secret."""
    pem = issuer.public_pem("rsa-1")
    header = {"alg": "HS256", "typ": "JWT", "kid": "rsa-1"}
    return forged(header, issuer.claims(), lambda text: hmac.new(pem, text, hashlib.sha256).digest())


def _unsigned(name: str) -> Forge:
    return lambda issuer: forged({"alg": name, "typ": "JWT", "kid": "rsa-1"}, issuer.claims(), lambda _: b"")


def _embedded(issuer: ToyIssuer) -> str:
    """Signed with a key of the attacker's own, which comes with it."""
    own = private_key("RS256", 9)
    header = {"kid": "rsa-1", "jwk": jwk_of("rsa-1", "RS256", own)}
    return jwt.encode(issuer.claims(), own, "RS256", headers=header)


def _with_header(**header: Any) -> Forge:
    return lambda issuer: issuer.token(header=header)


def _with_claims(**claims: Any) -> Forge:
    return lambda issuer: issuer.token(**now_of(claims))


def _with_signed_header(**header: Any) -> Forge:
    """One that a library would not make."""
    rsa = jwt.get_algorithm_by_name("RS256")
    named = {"alg": "RS256", "kid": "rsa-1", **header}
    return lambda issuer: forged(named, issuer.claims(), lambda text: rsa.sign(text, issuer.keys["rsa-1"][1]))


def _of_text(text: str) -> Forge:
    return lambda _: text


WRONG: dict[str, Forge] = {
    "signed by another": _of_another_key,
    "claims changed": _changed_claims,
    "the public key as a secret": _confused,
    "alg none": _unsigned("none"),
    "alg None": _unsigned("None"),
    "alg empty": _unsigned(""),
    "alg of another key": _unsigned("ES256"),
    "alg HS256": _unsigned("HS256"),
    "a key of its own": _embedded,
    "a key elsewhere": _with_header(jku="http://127.0.0.1:1/keys"),
    "a certificate elsewhere": _with_header(x5u="http://127.0.0.1:1/cert"),
    "a certificate of its own": _with_header(x5c=["MIIB"]),
    "a critical extension": _with_header(crit=["exp"], exp=1),
    "a payload elsewhere": _with_signed_header(b64=False),
    "compressed": _with_header(zip="DEF"),
    "another type": _with_header(typ="logout+jwt"),
    "a type that is no text": _with_header(typ=7),
    "an unknown key": _with_signed_header(kid="rsa-9"),
    "a path as key id": _with_signed_header(kid="../../dev/null"),
    "SQL as key id": _with_signed_header(kid="x' UNION SELECT 'key"),
    "a number as key id": _with_signed_header(kid=7),
    "a list as key id": _with_signed_header(kid=["rsa-1"]),
    "a long key id": _with_signed_header(kid="x" * 8000),
    "expired": _with_claims(exp=lambda: time.time() - 31),
    "without an end": _with_claims(exp=None),
    "an end that is text": _with_claims(exp="4000000000"),
    "an end that is true": _with_claims(exp=True),
    "not valid yet": _with_claims(nbf=lambda: time.time() + 60),
    "issued later": _with_claims(iat=lambda: time.time() + 60),
    "another audience": _with_claims(aud="https://other.example"),
    "an audience that begins so": _with_claims(aud=f"{AUDIENCE}/x"),
    "no audience": _with_claims(aud=None),
    "an audience that is an object": _with_claims(aud={AUDIENCE: 1}),
    "another issuer": _with_claims(iss="https://evil.example"),
    "an issuer with a slash": lambda issuer: issuer.token(iss=f"{issuer.url}/"),
    "no issuer": _with_claims(iss=None),
    "no user": _with_claims(sub=None),
    "a user that is a number": _with_claims(sub=7),
    "an empty user": _with_claims(sub=""),
    "a user of two lines": _with_claims(sub="ada\nadmin"),
    "a long user": _with_claims(sub="x" * 257),
    "modules that are an object": _with_claims(toolfleet_modules={"owls": 1}),
    "modules with a number": _with_claims(toolfleet_modules=["owls", 7]),
    "100 kB": _with_claims(padding="x" * 100_000),
    "100 kB of nothing": _of_text("x" * 100_000),
    "many dots": _of_text("." * 1000),
    "two parts": _of_text("e30.e30"),
    "no base64": _of_text("!.!.!"),
    "deep": _of_text(f"{encoded(b'[' * 5000)}.e30.e30"),
    "encrypted": _of_text("eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ.AA.AA.AA.AA"),
}


@pytest.mark.parametrize("forge", WRONG.values(), ids=WRONG.keys())
async def test_every_other_token_is_refused(issuer: ToyIssuer, verifier: TokenVerifier, forge: Forge) -> None:
    """With 401, and nothing of it in the reason."""
    token = forge(issuer)
    with pytest.raises(AuthRefused) as refused:
        await verifier.verify(token)

    assert (refused.value.status, refused.value.problem) == (401, "invalid-token")
    assert "eve" not in str(refused.value)
    assert not any(part in str(refused.value) for part in token.split(".") if len(part) > 8)


async def test_no_key_of_a_header_is_fetched(issuer: ToyIssuer, verifier: TokenVerifier) -> None:
    """Nobody makes a gateway ask a server of his choice."""
    issuer.site.page("/evil", b"{}")
    with pytest.raises(AuthRefused):
        await verifier.verify(issuer.token(header={"jku": f"{issuer.url}/evil"}))

    assert issuer.asked_for("/evil") == 0


async def test_a_scope_may_be_needed(issuer: ToyIssuer, verifier: TokenVerifier) -> None:
    """A good token without it is refused with 403, and told what it lacks."""
    strict = replace(verifier, scopes=("tools:call", "tools:read"))
    with pytest.raises(AuthRefused) as refused:
        await strict.verify(issuer.token(scope="tools:read openid"))

    assert (refused.value.status, refused.value.scopes) == (403, ("tools:call", "tools:read"))
    assert await strict.verify(issuer.token(scope="tools:read tools:call openid"))
    assert await strict.verify(issuer.token(scp=["tools:read", "tools:call"]))


async def test_claims_may_have_other_names(issuer: ToyIssuer, verifier: TokenVerifier) -> None:
    """Also within objects, and with dots in them."""
    names = {
        **verifier.claims,
        "user_id": "email",
        "permission": "realm_access.roles",
        "modules": "https://acme.example/modules",
        "role": "realm_access.roles",
        "conversation_id": "thread",
    }
    own = replace(verifier, claims=names)
    claims: dict[str, Any] = {
        "email": "ada@acme.example",
        "realm_access": {"roles": ["offline_access", "user", "admin", "operator"]},
        "https://acme.example/modules": "owls notes",
        "thread": "t-1",
    }
    found = await own.verify(issuer.token(**claims))

    assert (found.caller.user_id, found.caller.permission, found.role) == ("ada@acme.example", "admin", "admin")
    assert (found.caller.allowed_modules, found.conversation_id) == (frozenset({"owls", "notes"}), "t-1")


async def test_a_token_without_a_key_id_needs_a_single_key(issuer: ToyIssuer, verifier: TokenVerifier) -> None:
    """Of two that fit neither is tried."""
    token = jwt.encode(issuer.claims(), issuer.keys["rsa-1"][1], "RS256")
    assert await verifier.verify(token)
    issuer.add_key("rsa-2", "RS256", 2)
    verifier.keys._read_at = verifier.keys._asked_at = float("-inf")
    with pytest.raises(AuthRefused):
        await verifier.verify(issuer.token("rsa-1", header={"kid": "unknown"}))
    with pytest.raises(AuthRefused):
        await verifier.verify(token)


async def test_a_secret_in_the_key_set_verifies_nothing(issuer: ToyIssuer, verifier: TokenVerifier) -> None:
    """Even if the issuer publishes one, and the settings allowed it."""
    secret = b"s" * 32
    listed = [{"kty": "oct", "k": encoded(secret), "kid": "oct-1", "alg": "HS256"}]
    issuer.site.page(
        "/keys", json.dumps({"keys": [*listed, jwk_of("rsa-1", "RS256", issuer.keys["rsa-1"][1])]}).encode()
    )
    loose = replace(verifier, algorithms=verifier.algorithms | {"HS256"})
    with pytest.raises(AuthRefused):
        await loose.verify(jwt.encode(issuer.claims(), secret, "HS256", headers={"kid": "oct-1"}))

    assert await loose.verify(issuer.token())


async def test_a_known_token_is_good_for_no_longer(
    issuer: ToyIssuer, verifier: TokenVerifier, later: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when it ends, and when the issuer has withdrawn its key; one that differs in a letter is another one."""
    token = issuer.token(sub="ada", exp=time.time() + 300)
    for _ in range(3):
        assert (await verifier.verify(token)).caller.user_id == "ada"
    with pytest.raises(AuthRefused):
        await verifier.verify(token[:-2] + ("AA" if token[-2:] != "AA" else "BB"))
    after_its_end = replace(verifier, now=lambda: time.time() + 331)
    after_its_end._good.update(verifier._good)
    with pytest.raises(AuthRefused, match="expired"):
        await after_its_end.verify(token)

    issuer.withdraw("rsa-1")
    later.seconds = REFRESH_SECONDS + 1
    await verifier.verify(token)  # which has the keys read anew
    await wait_until(lambda: verifier.keys.readings == 2, "the keys were read anew")
    with pytest.raises(AuthRefused, match="no such key"):
        await verifier.verify(token)


async def test_known_tokens_are_bounded(
    issuer: ToyIssuer, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest go first."""
    monkeypatch.setattr(tokens, "MOST_GOOD", 3)
    for number in range(5):
        await verifier.verify(issuer.token("ec-1", sub=f"user-{number}"))

    assert len(verifier._good) == 3


async def test_an_algorithm_must_be_allowed(issuer: ToyIssuer, verifier: TokenVerifier) -> None:
    """Also for a key that could have signed so."""
    strict = replace(verifier, algorithms=frozenset({"ES256"}))

    assert await strict.verify(issuer.token("ec-1"))
    with pytest.raises(AuthRefused, match="not signed as"):
        await strict.verify(issuer.token("rsa-1"))
