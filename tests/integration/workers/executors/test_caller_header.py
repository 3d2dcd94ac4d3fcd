"""A module learns from the fleet, not from whoever reaches its port, who makes a call."""

import jwt

from support.module_server import ModuleServer
from support.published_call import published
from toolfleet_registry.contracts import Caller, PublishedCall
from toolfleet_tasks.messages.signing import caller_tokens, module_key
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor
from toolfleet_workers.executors.request import CallerToken

KEY = "a secret of more than thirty-two characters"


async def headers_of(call: PublishedCall, owls: ModuleServer, caller_token: CallerToken | None) -> dict[str, str]:
    """What a module gets with the call."""
    owls.forget()
    executor = HttpExecutor({"owls": owls.url}, client=HttpClient(), max_reply_bytes=2**20, caller_token=caller_token)
    try:
        assert (await executor.execute(call, seconds=10)).result.success
    finally:
        await executor.aclose()
    return owls.headers[0]


async def test_a_token_says_who_calls(owls: ModuleServer) -> None:
    """Its user is the request's, its id that of the request's `Idempotency-Key`, and it is for this module only."""
    call = published("owls.echo", user_id="ada", caller=Caller(user_id="ada", permission="owner"))
    headers = await headers_of(call, owls, caller_tokens(KEY))
    claims = jwt.decode(headers["toolfleet-caller"], module_key(KEY, "owls"), algorithms=["HS256"], audience="owls")

    assert (claims["sub"], claims["permission"], claims["tool"]) == ("ada", "owner", "owls.echo")
    assert claims["jti"] == headers["idempotency-key"]
    assert owls.requests[0]["user_id"] == "ada"


async def test_without_a_signing_key_there_is_no_token(owls: ModuleServer) -> None:
    """A module cannot take for verified what nobody has signed."""
    assert "toolfleet-caller" not in await headers_of(published("owls.echo"), owls, None)
