"""`uvicorn modules.claude_code.main:app` starts the module."""

from modules.claude_code.manifest import module_for
from modules.claude_code.settings import ClaudeCodeSettings
from toolfleet.sdk import hide_process

hide_process()
app = module_for(ClaudeCodeSettings()).app
