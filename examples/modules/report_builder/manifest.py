"""What `report_builder` offers. Its calls belong in the slow lane: name the module in `TOOLFLEET_SLOW_MODULES`."""

from modules.files import FilePipeline
from modules.report_builder.tools import ReportBuilder, ReportSettings
from toolfleet.sdk import Module


def module_for(settings: ReportSettings, files: FilePipeline) -> Module:
    """The module on the files of one pipeline, which it closes at its end."""
    tools = ReportBuilder(settings, files)
    module = Module("report_builder", description="Builds reports, slowly.")
    module.on_shutdown(files.close)
    module.add(tools.build_report, permission="guest", effect="read")
    module.add(tools.quick_report, permission="guest", effect="read", timeout_seconds=2)
    return module
