"""`uvicorn modules.research.main:app` starts the module."""

from modules.research.manifest import module_for
from modules.research.settings import ResearchSettings
from toolfleet.sdk import hide_process

hide_process()
app = module_for(ResearchSettings()).app
