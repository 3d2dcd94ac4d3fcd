"""`uvicorn modules.research.main:app` starts the module."""

from modules.research.manifest import manifest_for
from modules.research.settings import ResearchSettings
from modules.research.tools import Research
from modules.service import create_app

_settings = ResearchSettings()
app = create_app(manifest_for(_settings), Research.of(_settings))
