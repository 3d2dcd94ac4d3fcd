"""Who is let in, by keys in a real Redis and by tokens of a real issuer."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from support.servers.toy_issuer import AUDIENCE, ToyIssuer
from support.there import there
from toolfleet_gateway.auth.authenticator import Authenticator, authenticating, key_to_generate
from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.auth.own_secrets import GeneratedKey, generate_key, kept_key
from toolfleet_registry.access import COMMAND_LINE, KeyDraft, read_key_text
from toolfleet_registry.api_keys import CreatedKey
from toolfleet_registry.errors import FleetUnavailable, OperationRefused, SettingsError
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.system import fleet_clock

ADA = KeyDraft(user_id="ada", permission="admin", allowed_modules=frozenset({"owls"}), role="viewer")
METADATA = "https://tools.example/.well-known/oauth-protected-resource/fleet"


@pytest.fixture
def settings(redis_url: str, issuer: ToyIssuer) -> Settings:
    return load_settings(redis_url=redis_url, oauth_issuer=issuer.url, oauth_audience=(AUDIENCE,))


@pytest.fixture
async def gate(settings: Settings) -> AsyncIterator[Authenticator]:
    async with authenticating(settings) as gate:
        yield gate


async def created(gate: Authenticator, draft: KeyDraft = ADA) -> CreatedKey:
    return await gate.keys.ask(lambda keys: keys.create(draft, COMMAND_LINE))


async def refusal(gate: Authenticator, *headers: tuple[bytes, bytes], query: bytes = b"") -> AuthRefused:
    with pytest.raises(AuthRefused) as refused:
        await gate.identify(headers, query)
    return refused.value


def bearer(text: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {text}".encode()


async def test_a_key_says_who_it_is(gate: Authenticator) -> None:
    """In either header, and with all that it was made with."""
    made = await created(gate)
    for header in (bearer(made.text), (b"x-api-key", made.text.encode()), (b"X-API-Key", made.text.encode())):
        found = await gate.identify([(b"host", b"x"), header])
        assert found == Identity.of_key(made.key)
        assert (found.caller, found.role, found.name) == (made.key.caller, "viewer", f"key {made.key.id}")
    assert await gate.is_live(found)


async def test_a_token_is_let_in_beside_keys(gate: Authenticator, issuer: ToyIssuer) -> None:
    """Both are taken by one gateway."""
    found = await gate.identify([bearer(issuer.token())])

    assert (found.caller.user_id, found.name) == ("ada", "token ada")
    assert await gate.is_live(found)
    assert not await gate.is_live(replace(found, expires_at=fleet_clock.now() - 1))


async def test_nobody_in_particular_is_told_how_to_come_in(gate: Authenticator) -> None:
    """With 401, and where tokens come from; also for an endpoint of its own, and for another scheme."""
    refused = await refusal(gate)
    assert (refused.status, refused.problem) == (401, "missing-credentials")
    assert refused.headers["WWW-Authenticate"] == f'Bearer realm="toolfleet", resource_metadata="{METADATA}"'
    with pytest.raises(AuthRefused) as other:
        await gate.identify([(b"authorization", b"Basic YWRhOmFkYQ==")], endpoint="/mcp")
    assert f'resource_metadata="{METADATA}/mcp"' in other.value.headers["WWW-Authenticate"]


async def test_a_wrong_key_or_token_is_told_apart_from_none(gate: Authenticator, issuer: ToyIssuer) -> None:
    """By `invalid_token`, with a reason that repeats nothing."""
    made = await created(gate)
    for text, problem in (
        (f"{made.text[:-6]}000000", "invalid-key"),
        ("tfk_nonsense", "invalid-key"),
        (issuer.token(aud="other"), "invalid-token"),
        ("nonsense", "invalid-token"),
    ):
        refused = await refusal(gate, bearer(text))
        assert (refused.status, refused.problem) == (401, problem)
        assert 'error="invalid_token"' in refused.headers["WWW-Authenticate"]
        assert text not in str(refused) + refused.headers["WWW-Authenticate"]


async def test_a_token_is_no_api_key(gate: Authenticator, issuer: ToyIssuer) -> None:
    """Not in the header of keys."""
    assert (await refusal(gate, (b"x-api-key", issuer.token().encode()))).problem == "invalid-key"


async def test_too_little_scope_names_what_is_missing(settings: Settings, issuer: ToyIssuer) -> None:
    """With 403, so that a client asks for it."""
    async with authenticating(settings.model_copy(update={"oauth_scopes": ("call", "read")})) as gate:
        refused = await refusal(gate, bearer(issuer.token(scope="read")))

    assert refused.status == 403
    challenge = refused.headers["WWW-Authenticate"]
    assert 'error="insufficient_scope"' in challenge
    assert 'scope="call read"' in challenge


async def test_a_revoked_key_ends_what_goes_on(gate: Authenticator) -> None:
    """Whoever asks again is told."""
    made = await created(gate)
    found = await gate.identify([bearer(made.text)])
    await gate.keys.ask(lambda keys: keys.revoke([made.key.id]))

    assert not await gate.is_live(found)
    assert (await refusal(gate, bearer(made.text))).status == 401


async def test_without_the_store_nobody_is_let_in() -> None:
    """It is 503, with when to come again; a token needs no store."""
    async with authenticating(Settings(redis_url="redis://127.0.0.1:1/0")) as gate:
        text = generate_key().text
        refused = await refusal(gate, bearer(text))
        assert (refused.status, refused.problem, refused.headers["Retry-After"]) == (503, "auth-unavailable", "1")
        assert "WWW-Authenticate" not in refused.headers
        with pytest.raises(AuthRefused, match="cannot be read"):
            await gate.is_live(Identity.of_key(generate_key().key))


async def test_one_key_is_made_where_there_is_none(redis_url: str) -> None:
    """It may do everything, and is kept nowhere; another gateway, or the next, has another one."""
    settings = Settings(redis_url=redis_url)
    generated = there(await key_to_generate(settings, "127.0.0.1"))
    async with authenticating(settings, generated) as gate:
        found = await gate.identify([bearer(generated.text)])
        assert (found.role, found.caller.permission, found.caller.allowed_modules) == ("admin", "owner", "*")
        assert await gate.is_live(found)
        assert found.caller_for("bob").user_id == "bob"
        assert await gate.keys.ask(lambda keys: keys.records()) == []
    async with authenticating(settings, generate_key()) as other:
        assert (await refusal(other, bearer(generated.text))).status == 401
    assert generated.text not in repr(generated)
    assert isinstance(await key_to_generate(settings, "localhost", generated.text), GeneratedKey)


async def test_no_key_is_made_where_it_would_open_a_door(settings: Settings, redis_url: str) -> None:
    """Where there are keys, or an issuer, none is; and where others could come nobody is let in until there is one."""
    bare = Settings(redis_url=redis_url)
    assert await key_to_generate(settings, "0.0.0.0") is None  # noqa: S104 - others could come there
    for host in ("0.0.0.0", "192.0.2.7", "::", "tools.example"):  # noqa: S104 - as above
        assert await key_to_generate(bare, host) is None
    made = generate_key().text
    assert await key_to_generate(bare, "::", made) is None
    async with authenticating(bare, None) as gate:
        assert (await refusal(gate, bearer(made))).status == 401
    with pytest.raises(SettingsError, match="none that"):
        await key_to_generate(bare, "::1", "tfk_x")
    async with authenticating(bare) as gate:
        await created(gate)
    assert await key_to_generate(bare, "0.0.0.0") is None  # noqa: S104 - as above
    with pytest.raises(FleetUnavailable):
        await key_to_generate(Settings(redis_url="redis://127.0.0.1:1/0"), "127.0.0.1")


async def test_an_identity_makes_no_key_that_may_more(gate: Authenticator, issuer: ToyIssuer) -> None:
    """Neither that of a key nor that of a token."""
    draft = ADA.model_copy(update={"role": "admin", "expires_at": fleet_clock.now() + 60})
    admin = await gate.identify([bearer((await created(gate, draft)).text)])
    token = await gate.identify([bearer(issuer.token(toolfleet_role="admin", toolfleet_permission="user"))])
    for maker, more in (
        (admin, {"permission": "owner"}),
        (admin, {"expires_at": None}),
        (token, {"permission": "admin", "expires_at": fleet_clock.now() + 60}),
        (token, {"user_id": "bob", "permission": "user", "expires_at": fleet_clock.now() + 60}),
    ):
        wanted = draft.model_copy(update=more)
        with pytest.raises(OperationRefused):
            await gate.keys.ask(lambda keys, maker=maker, wanted=wanted: keys.create(wanted, maker.key_maker()))  # type: ignore[misc] # a lambda with defaults
    assert await gate.keys.ask(lambda keys: keys.create(draft, admin.key_maker()))


async def test_no_secret_is_logged(
    gate: Authenticator, issuer: ToyIssuer, later: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of those who come in nor of those who do not, also while the issuer is away."""
    caplog.set_level("DEBUG")
    made, token = await created(gate), issuer.token()
    issuer.go_away()
    with structlog.testing.capture_logs() as lines:
        for text in (made.text, token, f"{token}x", generate_key().text):
            with contextlib.suppress(AuthRefused):
                await gate.identify([bearer(text)])
    said = repr(lines) + caplog.text
    assert "issuer_keys_unreadable" in said
    assert not any(secret in said for secret in (made.text, made.text[20:60], token, token.split(".")[2]))


async def test_a_token_for_an_endpoint_is_good_there_only(gate: Authenticator, issuer: ToyIssuer) -> None:
    """MCP clients ask for tokens by the endpoint's URL: such a one opens what lies below it, and nothing else."""
    narrow = bearer(issuer.token(aud="https://tools.example/fleet/mcp"))
    narrower = bearer(issuer.token(aud="https://tools.example/fleet/mcp/owls"))

    for endpoint, header in (("/mcp", narrow), ("/mcp/owls", narrow), ("/mcp/owls", narrower)):
        assert (await gate.identify([header], endpoint=endpoint)).caller.user_id == "ada"
    for endpoint, header in (("", narrow), ("/mcp", narrower), ("/mcp/mice", narrower), ("/mcpx", narrow)):
        with pytest.raises(AuthRefused) as refused:
            await gate.identify([header], endpoint=endpoint)
        assert refused.value.problem == "invalid-token"


def test_a_key_is_made_once(tmp_path: Path) -> None:
    """It is one that gateways take, it is the same each time, and nobody else reads it, whatever became of the file."""
    file = tmp_path / "gateway-key"
    made = kept_key(file)
    assert read_key_text(made) is not None
    assert file.stat().st_mode & 0o777 == 0o600

    file.chmod(0o644)
    assert kept_key(file) == made
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["gateway-key"]


@pytest.mark.parametrize("content", [b"", b"tfk_0123456789ab_cut", b"\xff\xfe"])
def test_a_file_without_a_key_gets_one(tmp_path: Path, content: bytes) -> None:
    """One that was cut short, or written by hand."""
    file = tmp_path / "gateway-key"
    file.write_bytes(content)
    made = kept_key(file)

    assert read_key_text(made) is not None
    assert (kept_key(file), file.read_text()) == (made, f"{made}\n")
    assert file.stat().st_mode & 0o777 == 0o600
