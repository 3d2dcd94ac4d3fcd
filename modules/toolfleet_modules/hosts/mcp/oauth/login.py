"""Asks a person to log in at a server, regardless of stored tokens, and stores the new ones."""

from collections.abc import Mapping

import httpx2

from toolfleet_modules.hosts.mcp.oauth.authorization_client import AuthorizationClient
from toolfleet_modules.hosts.mcp.oauth.authorizer import Authorizer
from toolfleet_modules.hosts.mcp.oauth.challenge import Challenge
from toolfleet_modules.hosts.mcp.oauth.oauth_options import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth.person_port import PersonPort

# It begins no session, and is what a host asks first that a server may want a token for.
_QUESTION = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


async def log_in(options: OAuthOptions, headers: Mapping[str, str], person: PersonPort) -> None:
    """Have this person log in. `headers` go with each request to the server.

    Raises `AuthorizationRefused`, also if the person does not come back, and `AuthorizationAway`.
    """
    challenge = await _challenge(options.url, headers)
    authorizer = Authorizer(options, person=person, is_fresh=True)
    try:
        await authorizer.renewed(None, challenge)
    finally:
        await authorizer.aclose()


async def _challenge(url: str, headers: Mapping[str, str]) -> Challenge:
    """Return the server's challenge to a client without a token.

    A server without one may demand a token later, and publishes the details.
    """
    accepted = {"Accept": "application/json, text/event-stream", **headers}
    async with AuthorizationClient(url, name="it") as client:
        answer = await client.send(httpx2.Request("POST", url, json=_QUESTION, headers=accepted))
    return Challenge.of(answer) or Challenge()
