"""An MCP server whose results are a text and a structure that differ: `texts_server.py [PORT]`, over standard streams or HTTP."""

import sys
from typing import Annotated, Any

import mcp_types as types
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPj/HwADBwIAMCbHYQAAAABJRU5ErkJggg=="
"""A picture."""
TABLE = "| owl | eggs |\n| --- | --- |\n| ada | 2 |"
server = MCPServer("texts")


class Counted(BaseModel):
    """What is said of `several` to programs."""

    count: int
    picture: str


@server.tool()
def table() -> str:
    """Return a text, which the SDK wraps into a structure as well."""
    return TABLE


@server.tool()
def several() -> Annotated[types.CallToolResult, Counted]:
    """Return texts around a picture, which the structure has, too."""
    first, second, third = (types.TextContent(text=text) for text in ("first\n", "second", "third"))
    picture = types.ImageContent(data=PIXEL, mime_type="image/png")
    structure: dict[str, Any] = Counted(count=3, picture=PIXEL).model_dump()
    return types.CallToolResult(content=[first, second, picture, third], structured_content=structure)


@server.tool()
def apart() -> Annotated[types.CallToolResult, Counted]:
    """Return one text that says something else than the structure."""
    structure: dict[str, Any] = Counted(count=0, picture="").model_dump()
    return types.CallToolResult(content=[types.TextContent(text="no eggs")], structured_content=structure)


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
