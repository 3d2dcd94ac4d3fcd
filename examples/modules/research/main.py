"""`uvicorn modules.research.main:app` starts the module."""

from modules.research.manifest import module_for
from modules.research.settings import ResearchSettings

app = module_for(ResearchSettings()).app
