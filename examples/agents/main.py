"""`uvicorn agents.main:app` starts the core."""

from agents.app import create_app
from agents.settings import AgentSettings
from toolfleet_registry.settings import load_settings

app = create_app(AgentSettings(), load_settings())
