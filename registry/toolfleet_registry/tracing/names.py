"""Names spans and what they say: as OpenTelemetry's conventions have it, and where these are silent under `toolfleet.`."""

from typing import Final, Literal

Kind = Literal["internal", "server", "client", "producer", "consumer"]
"""What a span is to others: OpenTelemetry's span kinds."""

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions whose names these are."""

# Messaging.
MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_CLIENT_ID: Final = "messaging.client.id"

# GenAI.
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_RESULT: Final = "gen_ai.tool.call.result"

# MCP and JSON-RPC.
MCP_METHOD: Final = "mcp.method.name"
MCP_PROTOCOL_VERSION: Final = "mcp.protocol.version"
MCP_SESSION_ID: Final = "mcp.session.id"
JSONRPC_REQUEST_ID: Final = "jsonrpc.request.id"
RPC_STATUS_CODE: Final = "rpc.response.status_code"
NETWORK_TRANSPORT: Final = "network.transport"

# HTTP, and what all have.
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
URL_FULL: Final = "url.full"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

# The fleet's own.
ATTEMPT: Final = "toolfleet.attempt"
CALL_ID: Final = "toolfleet.call_id"
EFFECT_STATE: Final = "toolfleet.effect_state"
EVENT: Final = "toolfleet.event"
FENCING_TOKEN: Final = "toolfleet.fencing_token"  # noqa: S105 - an attribute's name
GRANTED: Final = "toolfleet.granted"
JOB_ID: Final = "toolfleet.job_id"
LANE: Final = "toolfleet.lane"
LINKED_AS: Final = "toolfleet.linked_as"
QUEUED_SECONDS: Final = "toolfleet.queued_seconds"

EXECUTE_TOOL: Final = "execute_tool"
TOOLS_CALL: Final = "tools/call"
OTHER_ERROR: Final = "_OTHER"
"""The type of an error for which there is no better word."""


def process_name(queue: str) -> str:
    """The span of one attempt in a worker."""
    return f"process {queue}"


def execute_name(tool: str) -> str:
    """The span of a tool that is run."""
    return f"{EXECUTE_TOOL} {tool}"
