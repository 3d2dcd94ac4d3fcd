"""`uvicorn modules.code_executor.main:app` starts the module."""

from modules.code_executor.limits import Limits
from modules.code_executor.manifest import manifest_for
from modules.code_executor.tools import CodeExecutor
from modules.replies import Replies
from modules.service import create_app
from modules.user_files import FileSettings

_limits = Limits()
app = create_app(manifest_for(_limits), CodeExecutor(_limits, FileSettings()), replies=Replies())
