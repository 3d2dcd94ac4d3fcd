"""`uvicorn modules.file_manager.main:app` starts the module."""

from modules.file_manager.manifest import module_for
from modules.files import open_pipeline
from toolfleet.sdk import hide_process

hide_process()
app = module_for(open_pipeline()).app
