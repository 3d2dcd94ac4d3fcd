"""Writes down what hosts are measured with: one tool as a folder's, a module's, an MCP server's, and an operation of a service."""

_FUNCTION = '''
async def echo(title: str, text: str, number: int) -> dict[str, str | int]:
    """Echo."""
    return {"title": title, "text": text, "number": number}
'''
FOLDER = f'from toolfleet.sdk import tool\n\n\n@tool(effect="read")\n{_FUNCTION.strip()}\n'
MODULE = f"""from toolfleet.sdk import Module

module = Module("plain")


@module.tool(effect="read")
{_FUNCTION.strip()}


app = module.app
"""
SERVER = f"""from mcp.server import MCPServer

server = MCPServer("crows")


@server.tool()
{_FUNCTION.strip()}


server.run("stdio")
"""
SERVICE = """from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def echo(request: Request) -> JSONResponse:
    return JSONResponse(await request.json())


app = Starlette(routes=[Route("/echo", echo, methods=["PUT"])])
"""
DOCUMENT = """openapi: 3.1.0
paths:
  /echo:
    put:
      operationId: echo
      requestBody:
        required: true
        content:
          application/json:
            schema:
              type: object
              required: [title, text, number]
              properties: {title: {type: string}, text: {type: string}, number: {type: integer}}
      responses:
        "200": {content: {application/json: {schema: {type: object}}}}
"""
