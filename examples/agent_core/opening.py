"""Puts the core together: its database, its model, its fleet; and waits for what is not there yet."""

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from agent_core.calls import Calls
from agent_core.conversations import Conversations, open_engine
from agent_core.core import Core
from agent_core.models.model import Model
from agent_core.models.openai_compatible_model import OpenAICompatibleModel
from agent_core.models.scripted_model import ScriptedModel
from agent_core.occupied import OneAtATime
from agent_core.people import People
from agent_core.settings import AgentSettings
from agent_core.turn import Turns
from modules.files import open_pipeline
from toolfleet import FleetUnavailable, Settings, SettingsError, ToolFleet
from toolfleet.webhooks import SQLSeen, WakeReceiver

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.5


async def opened_core(settings: AgentSettings, fleet_settings: Settings, stack: AsyncExitStack) -> Core:
    """The core; `stack` closes what it holds. Raises `SettingsError`, and `FleetUnavailable` after a minute."""
    if fleet_settings.core_secret is None:
        raise SettingsError("TOOLFLEET_CORE_SECRET must be set: without it nobody could know who wakes the core.")
    engine = open_engine(settings.database_url)
    stack.callback(engine.dispose)
    conversations = Conversations(engine)
    await conversations.make_tables()
    people = People(engine, settings)
    await asyncio.to_thread(people.fill)
    fleet = await _entered(fleet_settings, stack)
    calls = Calls(fleet, settings.patience_seconds)
    model = _model(settings, stack)
    return Core(
        Turns(fleet, calls, model, conversations, people, settings, float(fleet_settings.result_ttl_seconds)),
        conversations,
        WakeReceiver(fleet_settings.core_secret, SQLSeen(engine)),
        await stack.enter_async_context(open_pipeline()),
        OneAtATime(),
        settings,
    )


def _model(settings: AgentSettings, stack: AsyncExitStack) -> Model:
    if settings.model_url is None:
        return ScriptedModel()
    key = settings.model_key.get_secret_value() if settings.model_key else None
    model = OpenAICompatibleModel(
        settings.model_url,
        settings.model_name,
        key,
        instructions=settings.instructions,
        seconds=settings.model_seconds,
    )
    stack.push_async_callback(model.close)
    return model


async def _entered(settings: Settings, stack: AsyncExitStack) -> ToolFleet:
    """The fleet, once its Redis answers: after a power cut all start at the same time."""
    give_up_at = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return await stack.enter_async_context(ToolFleet(settings=settings))
        except FleetUnavailable as exc:
            if time.monotonic() > give_up_at:
                raise
            logger.warning("The fleet does not answer yet: %s", exc)
            await asyncio.sleep(_POLL_SECONDS)
