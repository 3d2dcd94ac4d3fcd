"""What `[hosts.NAME.oauth]` may say: what contradicts itself is one sentence with its place."""

from pathlib import Path
from typing import Any

import pytest

from toolfleet_registry.config.host_specs import McpSpec, OAuthSpec, is_safe_url
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

URL = "https://owls.example/mcp"
MACHINE = {"grant": "client_credentials", "client_id": "owl", "client_secret": "${KEY}", "issuer": "https://a.example"}


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ({"client_secret": "planted-secret"}, "client_secret is written ${NAME}"),
        ({"private_key": "a ${KEY}"}, "private_key is written ${NAME}"),
        ({**MACHINE, "private_key": "${KEY}"}, "either client_secret or private_key"),
        ({"client_secret": "${KEY}", "issuer": URL}, "need a client_id"),
        ({"client_secret": "${KEY}", "client_id": "owl"}, "need the issuer"),
        ({"grant": "client_credentials"}, "client_credentials needs a client_id"),
        ({**MACHINE, "redirect_port": 8080}, "leave redirect_port out"),
        ({"client_id": "owl", "private_key": "${KEY}", "issuer": URL}, "private_key is for grant"),
        ({"client_id": "owl", "client_metadata_url": f"{URL}/client"}, "either client_id or client_metadata_url"),
        ({"client_metadata_url": "http://owls.example/client"}, "client_metadata_url is no https URL"),
        ({"client_metadata_url": "https://owls.example/"}, "client_metadata_url is no https URL with a path"),
        ({"issuer": "http://owls.example"}, "issuer is no https URL"),
        ({"scopes": ("read write",)}, "a scope is one word"),
        ({"grant": "implicit"}, "Input should be"),
        ({"redirect_port": 70_000}, "less than or equal"),
        ({"secret": "planted-secret"}, "Extra inputs"),
    ],
)
def test_what_contradicts_itself_is_refused(oauth: dict[str, Any], said: str) -> None:
    """The sentence shows no value."""
    with pytest.raises(ValueError, match="validation error") as caught:
        OAuthSpec(**oauth)
    assert said in str(caught.value)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"command": ("owls",)}, "oauth is for a server that has a url"),
        ({"url": "http://owls.example/mcp"}, "no url without https"),
        ({"url": URL, "headers": {"authorization": "Bearer ${KEY}"}}, "either oauth or a header Authorization"),
    ],
)
def test_tokens_are_for_a_server_that_can_have_them(facts: dict[str, Any], said: str) -> None:
    """One that is reached over https, or on this machine, and has no other credential."""
    with pytest.raises(ValueError, match=said):
        McpSpec(**facts, oauth=OAuthSpec())


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://owls.example", True),
        ("https://10.0.0.7/mcp", True),
        ("http://127.0.0.1:8000/mcp", True),
        ("http://localhost:8000/mcp", True),
        ("http://[::1]/mcp", True),
        ("http://10.0.0.7/mcp", False),
        ("http://owls.example", False),
        ("http://localhost.owls.example", False),
        ("https://ada:word@owls.example", False),
        ("https://", False),
        ("ftp://127.0.0.1", False),
        ("owls", False),
    ],
)
def test_credentials_are_sent_unseen(url: str, *, is_safe: bool) -> None:
    """Over https, or without leaving the machine."""
    assert is_safe_url(url) == is_safe


def test_a_wrong_table_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file where it stands; an empty table is one for a person's login."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "toolfleet.toml"
    file.write_text(f'[hosts.owls]\nurl = "{URL}"\n[hosts.owls.oauth]\nclient_secret = "${{KEY}}"\n')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "toolfleet.toml" in str(caught.value)
    assert "owls.oauth: client_secret and private_key need a client_id." in str(caught.value)

    file.write_text(f'[hosts.owls]\nurl = "{URL}"\n[hosts.owls.oauth]\n')
    spec = load_settings().hosts["owls"]
    assert isinstance(spec, McpSpec)
    assert spec.oauth == OAuthSpec()
