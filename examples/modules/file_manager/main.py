"""`uvicorn modules.file_manager.main:app` starts the module."""

from modules.file_manager.manifest import module_for
from modules.files import open_pipeline

app = module_for(open_pipeline()).app
