"""Writes the contract between a fleet and a module as an OpenAPI document, from the models that both read with."""

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from toolfleet_modules.calls.request import ExecuteRequest, ReconcileRequest, StatusRequest
from toolfleet_modules.hosts.mcp.mcp_host import METHODS, PassedAnswer, PassedQuestion
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_workers.executors.reply import AcceptedReply, InputReply, ModuleReply
from toolfleet_workers.executors.status import ModuleStatusAnswer, ReconcileAnswer

Json = dict[str, Any]

_MODELS: tuple[type[BaseModel], ...] = (
    ModuleManifest,
    ExecuteRequest,
    ModuleReply,
    AcceptedReply,
    InputReply,
    ReconcileRequest,
    ReconcileAnswer,
    StatusRequest,
    ModuleStatusAnswer,
    PassedQuestion,
    PassedAnswer,
)
_PASSED_REFUSALS = {
    "403": "No valid token, or no user id where each user has a session.",
    "404": "No such method.",
    "422": "Parameters that are none.",
    "502": "The server answered with an error (`error` has its `code` and `message`), or with what is none of the protocol.",
    "503": "The server is away.",
    "504": "The server did not answer within 60 s.",
}
_HEADERS = {
    "Idempotency-Key": "The call's id. A retry carries the same one.",
    "Toolfleet-Attempt": "Which attempt of its call this is. Refuse one that is older than one that you have seen.",
    "Toolfleet-Begin-By": "Until when the attempt may begin: milliseconds since the epoch, by the fleet's clock.",
    "Toolfleet-Replica": "Which process of the module is meant, where several announce themselves. Any other answers 409 "
    "with its own id in this header, and has done nothing.",
    "Toolfleet-Caller": "Who calls, signed with the module's own key, where the fleet signs.",
}
_CALLER = "Toolfleet-Caller"
_PAGE = """# The module contract

A module is an HTTP service with these routes. [The document in OpenAPI 3.1](module-contract.json) is made from the
models with which workers and the SDK read requests and replies.

| route | who asks | must a module have it? |
|---|---|---|
| `GET /manifest` | workers, to learn the module's tools | yes |
| `POST /execute` | workers, to run a tool | yes |
| `GET /health` | workers, when the module could not be reached | no: any answer but 502, 503 and 504 says that it is there |
| `POST /reconcile` | workers, before they report a call as unknown | no |
| `POST /status` | workers, of a call that the module goes on with by itself | if it accepts calls |
| `POST /mcp/{method}` | whoever serves prompts, resources and completion to others | no: hosts of MCP servers have it |

[Modules in any language](../guides/modules-in-any-language.md) explains each of them but the last, which
[MCP servers](../guides/mcp-servers.md#prompts-resources-and-completion) does.

``` { .json }
--8<-- "docs/reference/module-contract.json"
```
"""


def module_contract_page() -> str:
    """Return the page, which shows the document."""
    return _PAGE


def module_contract() -> str:
    """Return the OpenAPI document as JSON."""
    _, schemas = models_json_schema(
        [(one, "validation") for one in _MODELS], ref_template="#/components/schemas/{model}"
    )
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "A module of Toolfleet", "version": "1", "license": {"name": "Apache-2.0"}},
        "paths": {
            "/manifest": {"get": _operation("The module's tools", ModuleManifest)},
            "/execute": {"post": _execute()},
            "/health": {
                "get": {"summary": "Whether the module is there", "responses": {"200": {"description": "It is."}}}
            },
            "/reconcile": {"post": _operation("What became of a call", ReconcileAnswer, ReconcileRequest)},
            "/status": {"post": _operation("Where an accepted call is", ModuleStatusAnswer, StatusRequest)},
            "/mcp/{method}": {"post": _passed()},
        },
        "components": {"schemas": schemas["$defs"]},
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _operation(summary: str, answer: type[BaseModel], request: type[BaseModel] | None = None) -> Json:
    operation: Json = {
        "summary": summary,
        "responses": {"200": {"description": f"{summary}.", "content": {"application/json": _schema(answer)}}},
    }
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": _schema(request)}}
    return operation


def _execute() -> Json:
    operation = _operation("Run a tool", ModuleReply, ExecuteRequest)
    lines = "Progress and log messages, one JSON object a line, and last the reply as application/json has it."
    operation["responses"]["200"]["content"]["application/x-ndjson"] = {
        "schema": {"type": "string", "description": lines}
    }
    either = [_schema(model)["schema"] for model in (ModuleReply, AcceptedReply, InputReply)]
    operation["responses"]["200"]["content"]["application/json"] = {"schema": {"anyOf": either}}
    operation["responses"]["202"] = {
        "description": "The module goes on with the call by itself.",
        "content": {"application/json": _schema(AcceptedReply)},
    }
    operation["responses"]["default"] = {"description": "408, 425, 429, and 503 with Retry-After: nothing was begun."}
    operation["parameters"] = [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in _HEADERS.items()
    ]
    return operation


def _passed() -> Json:
    operation = _operation("What an MCP server says of its prompts and resources", PassedAnswer, PassedQuestion)
    operation["responses"] |= {status: {"description": text} for status, text in _PASSED_REFUSALS.items()}
    method = {"type": "string", "enum": list(METHODS)}
    operation["parameters"] = [
        {
            "name": "method",
            "in": "path",
            "required": True,
            "description": "As the protocol calls it.",
            "schema": method,
        },
        {
            "name": _CALLER,
            "in": "header",
            "required": False,
            "description": _HEADERS[_CALLER],
            "schema": {"type": "string"},
        },
    ]
    return operation


def _schema(model: type[BaseModel]) -> Json:
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
