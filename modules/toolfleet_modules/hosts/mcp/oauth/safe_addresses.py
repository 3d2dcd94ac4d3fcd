"""Checks where credentials may be sent: over https, and to this machine only for a server that is on it as well."""

from ipaddress import ip_address

import httpx2

from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationRefused


def check_address(url: str | httpx2.URL, server: str | httpx2.URL) -> None:
    """Raise `AuthorizationRefused` for an address that `server`, or what it names, must not send a host to."""
    try:
        asked, near = httpx2.URL(url), is_here(httpx2.URL(server))
    except (httpx2.InvalidURL, TypeError):
        raise AuthorizationRefused("it names an address that is no URL") from None
    shown = f"{asked.scheme}://{asked.host}"[:200]
    if asked.userinfo or asked.scheme not in {"http", "https"} or not asked.host:
        raise AuthorizationRefused(f"it names an address that nothing is sent to: {shown}")
    if is_here(asked):
        if not near:
            raise AuthorizationRefused(f"it names an address on this machine: {shown}")
    elif asked.scheme != "https":
        raise AuthorizationRefused(f"it names an address without https: {shown}")


def is_same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Return whether data for one URL may be sent to the other."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def is_here(url: httpx2.URL) -> bool:
    """Return whether the URL is on this machine."""
    if url.host == "localhost" or url.host.endswith(".localhost"):
        return True
    try:
        address = ip_address(url.host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
