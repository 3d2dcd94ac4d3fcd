"""`uvicorn modules.knowledge.main:app` starts the module."""

from modules.files import FileSettings
from modules.knowledge.manifest import module_for
from modules.knowledge.settings import KnowledgeSettings
from toolfleet.sdk import hide_process

hide_process()
app = module_for(KnowledgeSettings(), FileSettings()).app
