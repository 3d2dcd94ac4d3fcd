"""`toolfleet host mcp NAME --login`: a person comes back from the authorization server, and hosts have the tokens from then on."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from support.documents import programs
from support.oauth.locked_server import LockedServer, locked_server
from support.waiting import wait_until
from toolfleet_cli.commands.mcp_hosts import McpCommand, log_in, log_in_mcp
from toolfleet_cli.hosting.hosts import named_host
from toolfleet_cli.hosting.mcp import oauth_of
from toolfleet_registry.config.host_settings import McpSpec, OAuthSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings, load_settings

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LockedServer]:
    async with locked_server(tmp_path) as server:
        (tmp_path / "toolfleet.toml").write_text(f'[hosts.nest]\nurl = "{server.url}"\n[hosts.nest.oauth]\n')
        yield server


async def visited(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        return await client.get(url)


async def test_a_person_logs_in(server: LockedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens are in the fleet's folder, and nobody else can read them. What comes with another state is not heard."""
    login, said = await begun(tmp_path, monkeypatch)
    query = parse_qs(urlsplit(said[0].split()[-1]).query)
    redirect = query["redirect_uri"][0]
    assert urlsplit(redirect).hostname == "127.0.0.1"
    for state in ("", "another", "é"):
        assert (await visited(f"{redirect}?code=stolen&state={state}")).status_code == 400
    assert not login.done()

    assert (await visited(said[0].split()[-1])).status_code == 200
    await login
    file = tmp_path / ".toolfleet" / "oauth" / "nest.json"
    assert said[1:] == [f"nest is logged in: it has 4 tools. Its tokens are in {file}."]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: Path | None = None
) -> tuple["asyncio.Future[None]", list[str]]:
    """The command in a thread, and what it has said once it shows its address."""
    said: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr("toolfleet_cli.commands.mcp_hosts.say", said.append)
    login = asyncio.ensure_future(asyncio.to_thread(log_in_mcp, McpCommand("nest", (), None, config, (), ())))
    await wait_until(lambda: said, "it shows its address")
    return login, said


async def test_a_login_that_is_refused_keeps_nothing(
    server: LockedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so in one sentence. A file of servers describes one as `toolfleet.toml` does."""
    server.authorization.refused = "access_denied"
    facts = {"url": server.url, "toolfleet": {"oauth": {}}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"nest": facts}}))
    for config in (None, tmp_path / "servers.json"):
        login, said = await begun(tmp_path, monkeypatch, config)
        await visited(said[0].split()[-1])
        with pytest.raises(SettingsError, match=r"^nest is not logged in: the login was refused \(access_denied\)\.$"):
            await login
    assert not (tmp_path / ".toolfleet" / "oauth" / "nest.json").exists()


async def test_the_guides_hosts_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its table says: one for a person's login, and one that asks by itself."""
    (tmp_path / "toolfleet.toml").write_text(programs("docs/guides/mcp-servers.md")["mcp-oauth"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEDGER_SECRET", "planted-secret-0123456789")
    settings = load_settings()
    found = {}
    for name, spec in settings.hosts.items():
        assert isinstance(spec, McpSpec)
        assert named_host(settings, name, start=tmp_path).name == name
        found[name], _ = oauth_of(settings, spec, name, beside=tmp_path)
    assert (found["wiki"].has_person, found["ledger"].has_person) == (True, False)
    assert found["ledger"].client_secret == "planted-secret-0123456789"
    assert "planted" not in repr(found)


async def test_who_does_not_come_back_is_not_waited_for(server: LockedServer, tmp_path: Path) -> None:
    spec = McpSpec(url=server.url, oauth=OAuthSpec())
    with pytest.raises(SettingsError, match=r"nest is not logged in: no login was completed within 0\.2 s\."):
        await asyncio.to_thread(log_in, Settings(), spec, "nest", print, beside=tmp_path, seconds=0.2)


CLIENT = {"client_id": "a", "issuer": "https://a.example"}
MACHINE = {"grant": "client_credentials", **CLIENT}


def nobody_at(**oauth: str) -> dict[str, Any]:
    return {"url": "http://127.0.0.1:9/mcp", "oauth": oauth}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"command": ("nest",)}, "it has no table `oauth`"),
        ({"url": "http://127.0.0.1:9/mcp"}, "it has no table `oauth`"),
        (nobody_at(**MACHINE, client_secret="${NEST}"), "its host asks by itself"),
        (nobody_at(**MACHINE, private_key="${NEST}"), "it is no private key in PEM"),
        (nobody_at(**CLIENT, client_secret="${NONE}"), "NONE is not there"),
        (nobody_at(), "it cannot be reached"),
    ],
)
async def test_what_nobody_can_log_in_at_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("NEST", "planted-secret-0123456789")
    with pytest.raises(SettingsError) as caught:
        await asyncio.to_thread(log_in, Settings(), McpSpec(**facts), "nest", print, beside=tmp_path)
    assert said in str(caught.value)
    assert "planted" not in str(caught.value)
