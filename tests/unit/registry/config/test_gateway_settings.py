"""The settings of gateways, and of whose tokens they take."""

from typing import Any

import pytest

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

pytestmark = pytest.mark.usefixtures("elsewhere")
ISSUER, AUDIENCE = "https://login.example/realms/acme", "https://tools.example/fleet/"


def test_oauth_is_off() -> None:
    """Nothing has to be set; what is allowed then is a public key's signature only."""
    settings = load_settings()

    assert settings.oauth_issuer is None
    assert settings.gateway_resource is None
    assert settings.oauth_algorithms == {"RS256", "ES256", "EdDSA"}
    assert settings.oauth_claim_names["user_id"] == "sub"


def test_oauth_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists with commas or as JSON; a claim that is not named keeps its name."""
    for name, value in {
        "OAUTH_ISSUER": ISSUER,
        "OAUTH_AUDIENCE": f"{AUDIENCE}, other",
        "OAUTH_ALGORITHMS": '["ES256"]',
        "OAUTH_SCOPES": "call,read",
        "OAUTH_CLAIMS": '{"user_id": "email"}',
    }.items():
        monkeypatch.setenv(f"TOOLFLEET_{name}", value)
    settings = load_settings()

    assert settings.oauth_issuer == ISSUER
    assert settings.oauth_audience == (AUDIENCE, "other")
    assert settings.oauth_algorithms == {"ES256"}
    assert settings.oauth_scopes == ("call", "read")
    assert settings.oauth_claim_names["user_id"] == "email"
    assert settings.oauth_claim_names["role"] == "toolfleet_role"
    assert settings.gateway_resource == "https://tools.example/fleet"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"oauth_issuer": ISSUER}, "TOOLFLEET_OAUTH_AUDIENCE"),
        ({"oauth_issuer": ISSUER, "oauth_audience": "api"}, "TOOLFLEET_GATEWAY_URL"),
        ({"oauth_issuer": "http://login.example"}, "https://"),  # whoever is on the way could send keys
        ({"oauth_issuer": "login.example"}, "https://"),
        ({"oauth_jwks_url": "http://login.example/keys"}, "https://"),
        ({"oauth_jwks_url": "file:///keys"}, "https://"),
        ({"oauth_algorithms": "HS256"}, "TOOLFLEET_OAUTH_ALGORITHMS"),
        ({"oauth_algorithms": "none"}, "TOOLFLEET_OAUTH_ALGORITHMS"),
        ({"oauth_algorithms": ""}, "one at least"),
        ({"oauth_claims": '{"admin": "x"}'}, "TOOLFLEET_OAUTH_CLAIMS"),
        ({"oauth_claims": "sub"}, "JSON"),
        ({"gateway_url": "tools.example"}, "TOOLFLEET_GATEWAY_URL"),
        ({"gateway_url": "https://tools.example/?a=1"}, "TOOLFLEET_GATEWAY_URL"),
        ({"gateway_url": "https://ada:secret@tools.example/"}, "TOOLFLEET_GATEWAY_URL"),
    ],
)
def test_what_is_wrong_is_one_sentence(overrides: dict[str, Any], named: str) -> None:
    """At the start."""
    with pytest.raises(SettingsError) as caught:
        load_settings(**overrides)

    assert named in str(caught.value)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_needs_no_tls(host: str) -> None:
    """For an issuer that is tried out."""
    settings = load_settings(oauth_issuer=f"http://{host}:8080", oauth_audience="api", gateway_url="http://127.0.0.1:9")

    assert settings.gateway_resource == "http://127.0.0.1:9"
