"""Where an MCP server may send a host for tokens."""

import pytest

from toolfleet_modules.hosts.mcp.oauth_flow import AuthorizationRefused
from toolfleet_modules.hosts.mcp.oauth_tokens import check_address

FAR = "https://owls.example/mcp"
HERE = "http://127.0.0.1:8000/mcp"


@pytest.mark.parametrize(
    ("url", "server", "said"),
    [
        ("https://auth.example/token", FAR, None),
        ("https://auth.example/token", HERE, None),
        ("http://127.0.0.1:9000/token", HERE, None),
        ("http://localhost:9000/token", HERE, None),
        ("http://auth.example/token", FAR, "without https"),
        ("http://auth.example/token", HERE, "without https"),
        ("http://169.254.169.254/latest", FAR, "without https"),
        ("http://127.0.0.1:6379/", FAR, "on this machine"),
        ("https://127.0.0.1/", FAR, "on this machine"),
        ("https://[::1]/", FAR, "on this machine"),
        ("https://0.0.0.0/", FAR, "on this machine"),
        ("https://a.localhost/", FAR, "on this machine"),
        ("https://ada:word@auth.example/", FAR, "nothing is sent to"),
        ("file:///etc/passwd", HERE, "nothing is sent to"),
        ("https://", FAR, "nothing is sent to"),
        ("https://a:b:c/", FAR, "no URL"),
    ],
)
def test_an_address_is_safe_or_refused(url: str, server: str, said: str | None) -> None:
    """Over https, and to this machine only for a server that is on it. What is refused shows no password."""
    if said is None:
        check_address(url, server)
        return
    with pytest.raises(AuthorizationRefused, match=said) as caught:
        check_address(url, server)
    assert "word" not in str(caught.value)
