"""`uvicorn agent_core.main:app` starts the core."""

from agent_core.app import create_app
from agent_core.settings import AgentSettings
from toolfleet_registry.settings import load_settings
from toolfleet_registry.system.process import hide_process

settings = load_settings()
if settings.hide_process:
    hide_process()
app = create_app(AgentSettings(), settings)
