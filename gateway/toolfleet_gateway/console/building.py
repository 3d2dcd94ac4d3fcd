"""Puts the console of a gateway together."""

from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis

from toolfleet_gateway.auth.fleet_codec import FleetCodec
from toolfleet_gateway.console.bulk.letter_steps import letter_step_pages
from toolfleet_gateway.console.bulk.wakeup_steps import wakeup_step_pages
from toolfleet_gateway.console.cookies import ConsoleCookies
from toolfleet_gateway.console.fleet_readings import FleetReadings
from toolfleet_gateway.console.front import ConsoleFront
from toolfleet_gateway.console.gateway_routes import GatewayRoutes
from toolfleet_gateway.console.known_tools import KnownTools
from toolfleet_gateway.console.page import ConsolePage
from toolfleet_gateway.console.page_paths import PagePaths
from toolfleet_gateway.console.pages.agents import agent_pages
from toolfleet_gateway.console.pages.api_keys import api_key_pages
from toolfleet_gateway.console.pages.approvals import approval_pages
from toolfleet_gateway.console.pages.audit import audit_pages
from toolfleet_gateway.console.pages.calls import call_pages
from toolfleet_gateway.console.pages.conversations import conversation_pages
from toolfleet_gateway.console.pages.dead_letters import dead_letter_pages
from toolfleet_gateway.console.pages.jobs import job_pages
from toolfleet_gateway.console.pages.limits import limit_pages
from toolfleet_gateway.console.pages.modules import module_pages
from toolfleet_gateway.console.pages.overview import overview_pages
from toolfleet_gateway.console.pages.queues import queue_pages
from toolfleet_gateway.console.pages.tool_errors import tool_error_pages
from toolfleet_gateway.console.pages.tools import tool_pages
from toolfleet_gateway.console.pages.trials import trial_pages
from toolfleet_gateway.console.pages.wakeups import wakeup_pages
from toolfleet_gateway.console.rendering import PageTemplates
from toolfleet_gateway.console.sessions import ConsoleSessions
from toolfleet_gateway.console.signing_in import SigningIn
from toolfleet_gateway.console.static_files import StaticFiles
from toolfleet_gateway.http.entrance import Entrance
from toolfleet_gateway.http.routes import AnyRoute
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet

CONSOLE: Final = "/console"
"""Where it is, below the gateway's own path."""

CONSOLE_PATHS: Final = (CONSOLE, CONSOLE + "/{rest:path}")
"""What it answers."""


def console_of(
    fleet: ToolFleet,
    settings: Settings,
    redis: Redis,
    entrance: Entrance,
    streams: OpenStreams,
    routes: Sequence[AnyRoute],
) -> ConsoleFront:
    """The console of the gateway that has these routes."""
    path = settings.gateway_root_path + CONSOLE
    files = StaticFiles()
    templates = PageTemplates(path, files.address)
    keys = GatewayKeys(settings.keys)
    codec = FleetCodec(redis, keys, settings.signing_keys, purpose="console session")
    sessions, cookies = ConsoleSessions(codec, redis, keys), ConsoleCookies(settings, path)
    return ConsoleFront(
        paths=PagePaths(_pages(fleet, settings, streams, sessions, templates)),
        routes=GatewayRoutes(routes),
        entrance=entrance,
        sessions=sessions,
        signing_in=SigningIn(entrance, sessions, cookies, templates),
        cookies=cookies,
        codec=codec,
        templates=templates,
        files=files,
    )


def _pages(
    fleet: ToolFleet, settings: Settings, streams: OpenStreams, sessions: ConsoleSessions, templates: PageTemplates
) -> list[ConsolePage]:
    tools = KnownTools(fleet)
    return [
        *overview_pages(FleetReadings(fleet, settings), streams, sessions, templates),
        *call_pages(),
        *conversation_pages(),
        *approval_pages(),
        *letter_step_pages(),
        *dead_letter_pages(),
        *module_pages(tools),
        *trial_pages(fleet),
        *tool_pages(tools),
        *job_pages(),
        *wakeup_step_pages(),
        *wakeup_pages(),
        *queue_pages(),
        *limit_pages(tools, settings),
        *agent_pages(),
        *tool_error_pages(),
        *audit_pages(),
        *api_key_pages(),
    ]
