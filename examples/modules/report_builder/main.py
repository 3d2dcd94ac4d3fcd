"""`uvicorn modules.report_builder.main:app` starts the module."""

from modules.files import open_pipeline
from modules.report_builder.manifest import module_for
from modules.report_builder.tools import ReportSettings
from toolfleet.sdk import hide_process

hide_process()
app = module_for(ReportSettings(), open_pipeline()).app
