"""`uvicorn modules.report_builder.main:app` starts the module."""

from modules.report_builder.manifest import MANIFEST
from modules.report_builder.tools import ReportBuilder, ReportSettings
from modules.service import create_app
from modules.user_files import FileSettings

app = create_app(MANIFEST, ReportBuilder(ReportSettings(), FileSettings()))
