"""Servers that want OAuth: who gets tokens, what is done without, and what a server that lies does not get."""

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.oauth.locked_server import WRITING, LockedServer, locked_server
from support.oauth.loopback_app import served
from support.oauth.toy_authorization import CLIENT, SECRET, toy_authorization
from support.waiting import wait_until
from toolfleet_modules.hosts.mcp.oauth_flow import AuthorizationAway, AuthorizationRefused
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer, Challenge

pytestmark = pytest.mark.asyncio

MACHINE = {"grant": "client_credentials", "client_id": CLIENT, "client_secret": SECRET}
LOGIN = "toolfleet host mcp nest --login"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LockedServer]:
    async with locked_server(tmp_path) as server:
        yield server


async def test_who_has_logged_in_is_served(
    server: LockedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A host has its token from a file that nobody else can read; no token is in a log, nor in what its server sends back."""
    caplog.set_level(logging.DEBUG)
    await server.log_in()
    async with server.hosted() as hosted:
        assert (await hosted.call("read")).result == "read done"
        assert (await hosted.call("repeat")).result == "Bearer [secret oauth]"

    file = tmp_path / "nest.json"
    assert file.stat().st_mode & 0o777 == 0o600
    record = json.loads(file.read_text())
    assert record["tokens"]["access_token"] in server.authorization.tokens
    assert server.authorization.forms[0]["resource"] == server.url
    assert "planted" not in caplog.text


async def test_a_host_without_a_login_says_how_to_log_in(server: LockedServer) -> None:
    """In its manifest; it registers nothing, asks for nothing, and opens no browser."""
    async with server.hosted() as hosted:
        assert hosted.faults() == {"nest": f"Its server cannot be served: it needs a login: `{LOGIN}`."}

    assert server.authorization.asked == []


async def test_a_lost_login_refuses_calls_until_there_is_another(server: LockedServer) -> None:
    """They end with what is to be done, and have done nothing. The host has the next login without a restart."""
    await server.log_in()
    async with server.hosted() as hosted:
        server.authorization.forget_tokens(refreshes=True)
        lost = await hosted.call("read")
        assert (lost.success, lost.effect_state, LOGIN in str(lost.error)) == (False, "none", True)
        again = await hosted.call("read")
        assert (again.effect_state, LOGIN in str(again.error)) == ("none", True)
        assert server.authorization.asked.count("refresh_token") == 1  # a dead one is not tried again

        await server.log_in()
        assert (await hosted.settled("read")).success
    assert server.done == ["read"]


async def test_a_token_that_is_refused_is_renewed(server: LockedServer) -> None:
    """By the refresh token, once for all calls that were turned away; each call is run once."""
    await server.log_in()
    async with server.hosted() as hosted:
        server.authorization.forget_tokens()
        results = await asyncio.gather(*(hosted.call("read") for _ in range(8)))

    assert all(result.success for result in results)
    assert server.authorization.asked.count("refresh_token") == 1
    assert server.done == ["read"] * 8


async def test_a_token_is_renewed_before_its_end(server: LockedServer, tmp_path: Path) -> None:
    """A host does not wait for the server to refuse it."""
    await server.log_in()
    file = tmp_path / "nest.json"
    record = json.loads(file.read_text())
    assert 3500 < record["lasts_until"] - time.time() < 3600
    file.write_text(json.dumps({**record, "lasts_until": 1.0}))
    async with server.hosted() as hosted:
        assert (await hosted.call("read")).success
    assert server.authorization.asked.count("refresh_token") == 1
    assert _token(tmp_path) != record["tokens"]["access_token"]


async def test_an_authorization_server_that_is_away_costs_no_login(server: LockedServer) -> None:
    """The call comes back later, and the refresh token is still there."""
    await server.log_in()
    async with server.hosted() as hosted:
        server.authorization.forget_tokens()
        server.authorization.status = 503
        away = await hosted.call("read")
        assert (away.status, away.effect_state) == (503, "none")
        server.authorization.status = 200
        assert (await hosted.settled("read")).success


async def test_a_call_that_is_given_up_loses_no_token(server: LockedServer, tmp_path: Path) -> None:
    """A refresh token counts once: what came for it is kept, though nobody waits for it any more."""
    await server.log_in()
    async with server.hosted() as hosted:
        server.authorization.forget_tokens()
        server.authorization.open.clear()
        call = asyncio.ensure_future(hosted.call("read"))
        await wait_until(lambda: "refresh_token" in server.authorization.asked, "it is being renewed")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        server.authorization.open.set()
        await wait_until(lambda: _token(tmp_path) in server.authorization.tokens, "the other token is kept")
        assert (await hosted.call("read")).success
    assert server.authorization.asked.count("refresh_token") == 1


async def test_replicas_share_a_login(server: LockedServer) -> None:
    """However often their tokens end at once, each refresh token is used by one of them, and both go on."""
    await server.log_in()
    async with server.hosted() as one, server.hosted() as other:
        for _ in range(5):
            server.authorization.forget_tokens()
            results = await asyncio.gather(*(each.call("read") for each in (one, other) * 4))
            assert all(result.success for result in results)

    assert not server.authorization.is_reused
    assert server.authorization.asked.count("refresh_token") == 5


async def test_a_slow_call_holds_no_other(server: LockedServer) -> None:
    """Calls with one token run side by side."""
    await server.log_in()
    server.gate.clear()
    async with server.hosted() as hosted:
        slow = asyncio.ensure_future(hosted.call("slow"))
        await wait_until(lambda: "slow" in server.done, "it is at work")
        assert (await hosted.call("read")).success
        assert not slow.done()
        server.gate.set()
        assert (await slow).success


async def test_a_host_gets_more_rights_by_itself(server: LockedServer) -> None:
    """With credentials of its own: it asks for what it had and for what the server demands."""
    async with server.hosted(**MACHINE, issuer=server.authorization.issuer) as hosted:
        assert (await hosted.call("read")).success
        assert (await hosted.call("write")).success

    assert [form.get("scope") for form in server.authorization.forms] == ["owls:read", f"owls:read {WRITING}"]
    assert server.done == ["read", "write"]


async def test_more_rights_need_a_person(server: LockedServer) -> None:
    """Where one has logged in: the call says for what, others go on, and the next login asks for it."""
    await server.log_in()
    async with server.hosted() as hosted:
        refused = await hosted.call("write")
        assert (refused.success, refused.effect_state) == (False, "none")
        assert f"it needs a login for {WRITING}: `{LOGIN}`" in str(refused.error)
        assert (await hosted.call("read")).success

        await server.log_in()
        assert (await hosted.call("write")).success
    assert {"owls:read", WRITING} in server.authorization.tokens.values()


async def test_a_client_signs_who_it_is(server: LockedServer) -> None:
    """By its private key, for its issuer only; the key is never sent."""
    key = ec.generate_private_key(ec.SECP256R1())
    server.authorization.key = key.public_key()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    options = {"grant": "client_credentials", "client_id": CLIENT, "private_key": pem}
    async with server.hosted(**options, issuer=server.authorization.issuer) as hosted:
        assert (await hosted.call("read")).success
    assert "PRIVATE" not in json.dumps(server.authorization.forms)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"metadata": {"issuer": "http://127.0.0.1:9"}}, "issuer mismatch"),  # metadata of another issuer
        ({"resource": {"resource": "https://owls.example/mcp"}}, "does not match"),  # tokens for another server
        ({"resource": {"authorization_servers": ["http://owls.example"]}}, "without https"),
        ({"resource": {"authorization_servers": ["https://ada:word@owls.example"]}}, "nothing is sent to"),
        ({"metadata": {"token_endpoint": "http://owls.example/token"}}, "without https"),
        ({"metadata": {"padding": "x" * 300_000}}, "more than"),
        ({"metadata": {"token_endpoint": 7}}, "(publishes no|no authorization server) metadata"),
    ],
)
async def test_a_server_that_lies_gets_no_credential(
    server: LockedServer, lie: dict[str, dict[str, Any]], said: str
) -> None:
    """Neither of a machine nor of a person."""
    for part, changed in lie.items():
        (server.authorization.metadata if part == "metadata" else server.resource).update(changed)

    machine = Authorizer(server.options(**MACHINE, issuer=server.authorization.issuer))
    with pytest.raises(AuthorizationRefused, match=said):
        await machine.renewed(None, Challenge())
    with pytest.raises(AuthorizationRefused, match=said):
        await server.log_in()
    assert server.authorization.forms == []


async def test_a_secret_is_sent_to_its_issuer_only(server: LockedServer) -> None:
    """A server that names another authorization server gets neither the secret there, nor a login."""
    async with toy_authorization() as thief:
        server.resource["authorization_servers"] = [thief.issuer]
        known = {"client_id": CLIENT, "client_secret": SECRET, "issuer": server.authorization.issuer}
        async with server.hosted(grant="client_credentials", **known) as hosted:
            assert "issuer" in hosted.faults()["nest"]
        with pytest.raises(AuthorizationRefused, match="is not the issuer"):
            await server.log_in(**known)

        assert set(thief.asked) <= {"/.well-known/oauth-authorization-server"}


async def test_no_token_follows_a_redirect(server: LockedServer) -> None:
    """To another origin than the server's."""
    heads: list[dict[bytes, bytes]] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            heads.append(dict(scope["headers"]))
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body"})

    await server.log_in()
    async with served(elsewhere) as url:
        server.elsewhere = f"{url}/mcp"
        async with server.hosted() as hosted:
            assert hosted.faults()
    assert [head for head in heads if b"authorization" in head] == []


async def test_what_an_authorization_server_says_is_not_repeated(server: LockedServer) -> None:
    """Its error is, by name: its words may show what it was sent."""
    server.authorization.status = 401
    async with server.hosted(**MACHINE, issuer=server.authorization.issuer) as hosted:
        fault = hosted.faults()["nest"]
    assert "gives no token (invalid_client)" in fault
    assert SECRET not in fault
    assert base64.b64encode(SECRET.encode()).decode() not in fault


async def test_tokens_of_another_server_or_client_are_not_sent(server: LockedServer, tmp_path: Path) -> None:
    """What is kept counts for the server and the client that it was got for; what cannot be read is nothing."""
    await server.log_in()
    async with server.hosted(scopes=("owls:read",)) as hosted:
        assert not hosted.faults()
    async with server.hosted(issuer=server.authorization.issuer) as hosted:
        assert LOGIN in hosted.faults()["nest"]
    (tmp_path / "nest.json").write_text('{"identity": ')
    async with server.hosted() as hosted:
        assert LOGIN in hosted.faults()["nest"]


async def test_a_login_without_an_answer_is_refused(server: LockedServer) -> None:
    """By who logs in, or as there is no authorization server; nothing is kept then."""
    with pytest.raises(AuthorizationAway, match="it cannot be reached"):
        await server.log_in(url="http://127.0.0.1:9/mcp")
    server.authorization.status = 503
    with pytest.raises(AuthorizationAway, match="HTTP 503"):
        await server.log_in()
    assert not server.options().file.exists()


def _token(folder: Path) -> str:
    return str(json.loads((folder / "nest.json").read_text()).get("tokens", {}).get("access_token"))
