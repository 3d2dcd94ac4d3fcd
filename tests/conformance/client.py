"""`python -m conformance.client URL`: serves the suite's server by the host of MCP servers, and asks the module that it is for all it has.

Where a server wants OAuth, a robot logs in for the host, as the suite expects. What the host cannot list is written to standard error, and
the exit code is 1.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from support.oauth.robot_person import RobotPerson
from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.mcp_host import McpHost, McpOptions
from toolfleet_modules.hosts.mcp.mcp_tool import McpTool
from toolfleet_modules.hosts.mcp.oauth_flow import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer
from toolfleet_modules.sdk.client import ModuleClient, ModuleResult
from toolfleet_registry.contracts.inputs import MOST_ROUNDS, CallInputs

_LISTED_SECONDS = 10
_CALL_SECONDS = 10
_USER = "ada"
_ASKING = "elicitation"  # in the names of scenarios whose older server asks
_ECHO = "json_schema_echo"
_OAUTH = "auth/"
_METADATA_URL = "https://conformance-test.local/client-metadata.json"  # the one that the suite knows
_SAMPLES: Mapping[str, Any] = {"integer": 5, "number": 5, "boolean": True, "array": [], "object": {}, "null": None}


async def main(url: str) -> int:
    """Have one server served, and everything asked for that its scenario wants to see."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    with tempfile.TemporaryDirectory() as folder:
        server = HttpServer(url, authorizer=await _authorizer(url, scenario, Path(folder)))
        return await _served(server, scenario)


async def _authorizer(url: str, scenario: str, folder: Path) -> Authorizer | None:
    """What gets tokens, as the suite says who the client is."""
    if not scenario.startswith(_OAUTH):
        return None
    context = _context()
    is_machine = "client-credentials" in scenario
    options = OAuthOptions(
        url,
        folder / "suite.json",
        "(the suite)",
        grant="client_credentials" if is_machine else "authorization_code",
        issuer=context.get("issuer") or (await _issuer(url) if is_machine else None),
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
        private_key=context.get("private_key_pem"),
        client_metadata_url=None if "client_id" in context else _METADATA_URL,
    )
    return Authorizer(options, person=None if is_machine else RobotPerson())


async def _issuer(url: str) -> str:
    """The issuer of a client's secret, which whoever registered it knows, and the suite does not say."""
    parts = urlsplit(url)
    async with httpx.AsyncClient(trust_env=False, timeout=_CALL_SECONDS) as client:
        answer = await client.get(f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}")
    return str(answer.json()["authorization_servers"][0])


async def _served(server: HttpServer, scenario: str) -> int:
    host = McpHost(
        McpOptions("suite", server, trusted=True, asks=_ASKING in scenario, handshake_seconds=_LISTED_SECONDS)
    )
    async with ModuleClient(host, user_id=_USER) as client:
        for each in host.manifest.load_errors or ():
            print(f"{each.file}: {each.message}", file=sys.stderr)  # noqa: T201 - the suite keeps it with the results
        if not host.tools and host.manifest.load_errors:
            return 1
        for name, arguments in _calls(host):
            result = await _called(client, name, arguments)
            print(f"{name}: {result}", file=sys.stderr)  # noqa: T201 - as above
        await _ask_for_more(host, client)
    return 0


async def _called(client: ModuleClient, name: str, arguments: dict[str, Any]) -> ModuleResult:
    """A call's result, by somebody who answers whatever its server asks."""
    call_id, inputs, number = uuid4().hex, None, 0
    while True:
        result = await client.send(
            name, arguments, user_id=_USER, call_id=call_id, seconds=_CALL_SECONDS, takes_input=True, inputs=inputs
        )
        number += 1
        if not result.requests or number > MOST_ROUNDS:
            return result
        responses = {key: _answer(request) for key, request in result.requests.items()}
        inputs = CallInputs(round=number, responses=responses, state=result.state)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a person, a model or a client says: a form is sent as it was, with its defaults."""
    match request["method"]:
        case "elicitation/create":
            form = request["params"].get("requestedSchema", {}).get("properties", {})
            content = {
                name: field.get("default", _SAMPLES.get(field.get("type"), "owl")) for name, field in form.items()
            }
            return {"action": "accept", "content": content}
        case "sampling/createMessage":
            return {
                "role": "assistant",
                "content": {"type": "text", "text": "hoo"},
                "model": "owl",
                "stopReason": "endTurn",
            }
        case _:
            return {"roots": []}


def _calls(host: McpHost) -> list[tuple[str, dict[str, Any]]]:
    """The calls that a scenario names, or one of each tool."""
    tools = {name: tool for name, tool in host.tools.items() if isinstance(tool, McpTool)}
    methods = {tool.original: name for name, tool in tools.items()}
    if named := _context().get("toolCalls"):
        return [(methods[call["name"]], call["arguments"]) for call in named if call["name"] in methods]
    if _ECHO in methods:
        schema = next(tool.definition.input_schema for tool in tools.values() if tool.original != _ECHO)
        return [(methods[_ECHO], {"schema": schema})]
    return [(name, _arguments(tool.definition.input_schema or {})) for name, tool in tools.items()]


def _context() -> dict[str, Any]:
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return context


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Something for each property that is required."""
    properties = schema.get("properties", {})
    return {name: _SAMPLES.get(properties[name].get("type"), "owl") for name in schema.get("required", ())}


async def _ask_for_more(host: McpHost, client: ModuleClient) -> None:
    """Read the server's prompts and resources, where it has some."""
    resources = await _asked(client, "resources/list", {})
    for resource in resources.get("resources", ()):
        await _asked(client, "resources/read", {"uri": resource["uri"]})
    prompts = await _asked(client, "prompts/list", {})
    for prompt in prompts.get("prompts", ()):
        await _asked(client, "prompts/get", {"name": prompt["name"]})


async def _asked(client: ModuleClient, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The result; nothing where the server has none of that."""
    answer = await client.http.post(f"/mcp/{method}", json={"params": params, "user_id": _USER})
    result: dict[str, Any] = answer.json().get("result", {}) if answer.is_success else {}
    return result


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(asyncio.run(main(sys.argv[1])))
