"""An MCP server whose tools have an app, over HTTP."""

from mcp.server.apps import Apps, ResourceCsp, ResourcePermissions, client_supports_apps
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette

from support.hosts.nest_server import make_older


def app_server(name: str, address: str, *, is_old: bool) -> Starlette:
    """The server of that name, whose app has this address."""
    apps = Apps()

    @apps.tool(resource_uri=address)
    def show(context: Context) -> str:
        """Say how the client was taken."""
        return "an app" if client_supports_apps(context) else "a text"

    @apps.tool(resource_uri=address, visibility=["app"])
    def refresh() -> str:
        """Say which server was asked."""
        return name

    apps.add_html_resource(
        address,
        f"<!DOCTYPE html><title>{name}</title>",
        csp=ResourceCsp(connect_domains=["https://owls.example"]),
        permissions=ResourcePermissions(camera={}),
        prefers_border=True,
    )
    server = MCPServer(name, extensions=[apps])

    @server.tool(name=f"only_{name}")
    def only() -> str:
        """Say which server was asked."""
        return name

    @server.resource(f"data://{name}", mime_type="text/plain")
    def data() -> str:
        """What an app of this server reads."""
        return name

    if is_old:
        make_older(server._lowlevel_server)
    return server.streamable_http_app()
