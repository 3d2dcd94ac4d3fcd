"""`uvicorn modules.code_executor.main:app` starts the module."""

from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for
from modules.files import open_pipeline
from toolfleet.sdk import hide_process

hide_process()
app = module_for(Limits(), open_pipeline()).app
