"""`uvicorn agents.main:app` starts the core."""

from agents.app import create_app
from agents.settings import AgentSettings
from toolfleet_registry.private_process import hide_process
from toolfleet_registry.settings import load_settings

settings = load_settings()
if settings.hide_process:
    hide_process()
app = create_app(AgentSettings(), settings)
