"""`uvicorn modules.location.main:app` starts the module."""

from modules.files import FileSettings
from modules.location.manifest import module_for
from modules.location.settings import LocationSettings
from toolfleet.sdk import hide_process

hide_process()
app = module_for(LocationSettings(), FileSettings()).app
