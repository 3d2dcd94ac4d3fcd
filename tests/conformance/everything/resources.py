"""Offers resources, and notes who watches them."""

import json
import re

import mcp_types as types
from mcp.shared.exceptions import MCPError

from conformance.everything.content_tools import png
from conformance.everything.tools import Context

_TEXT, _BINARY, _WATCHED = "test://static-text", "test://static-binary", "test://watched-resource"
_TEMPLATE = re.compile(r"test://template/([^/]+)/data")


class Resources:
    """What is offered; `watched` are the addresses that somebody watches."""

    def __init__(self) -> None:
        self.watched = set[str]()

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """All that have an address of their own."""
        texts = [_resource(_TEXT, "text/plain"), _resource(_WATCHED, "text/plain")]
        return types.ListResourcesResult(resources=[*texts, _resource(_BINARY, "image/png")])

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """The one form of addresses."""
        template = types.ResourceTemplate(
            uri_template="test://template/{id}/data",
            name="template",
            description="Data by its id.",
            mime_type="application/json",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """What is there."""
        return types.ReadResourceResult(contents=[_content(str(params.uri))])

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Note that an address is watched."""
        self.watched.add(str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Note that it is not any more."""
        self.watched.discard(str(params.uri))
        return types.EmptyResult()


def _resource(uri: str, mime_type: str) -> types.Resource:
    name = uri.removeprefix("test://")
    return types.Resource(uri=uri, name=name, description=f"The resource {name}.", mime_type=mime_type)


def _content(uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    if uri == _BINARY:
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=png())
    if uri in {_TEXT, _WATCHED}:
        text = "This is the content of the static text resource."
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=text)
    if (found := _TEMPLATE.fullmatch(uri)) is not None:
        data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))
    raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
