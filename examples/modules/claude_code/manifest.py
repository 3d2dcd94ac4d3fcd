"""What `claude_code` offers, who may call it, and what a repeat would do."""

from modules.claude_code.dispatcher import Dispatcher
from modules.claude_code.settings import ClaudeCodeSettings
from modules.claude_code.task_store import TaskStore
from modules.claude_code.tools import ClaudeCode
from modules.command_isolation import described, isolation_at_start
from toolfleet.sdk import Module

_ANSWER_SECONDS = 20  # nothing here waits for an agent, apart from the end of one
_RUN_TASK = (
    "Start a coding agent on a task, in a new workspace, and return at once with its task_id. Use claude_code.task_status to "
    "see when it is completed; scheduler.add_job can do so and wake the conversation. The workspace can then be deployed with "
    "deployer.deploy."
)


def module_for(settings: ClaudeCodeSettings) -> Module:
    """The module on the tasks under one root.

    Starting an agent is starting a program on this machine, which writes and runs what it likes: that is for admins. To
    look at one's own tasks, and to end them, needs no such trust. What keeps agents apart is in the tool's description. Raises
    `RuntimeError` if that is not what the settings demand.
    """
    isolation = isolation_at_start(settings.isolation, network=settings.network, module="claude_code")
    store = TaskStore(settings)
    tools = ClaudeCode(store, settings)
    module = Module("claude_code", description="Runs a coding agent on tasks, in the background.")
    module.lifespan(Dispatcher(store, settings).running)
    # A repeat of the same call finds the task that it has started; another call with the same words starts another one.
    module.add(
        tools.run_task,
        description=f"{_RUN_TASK} {described(isolation, network=settings.network)}",
        permission="admin",
        effect="once",
        timeout_seconds=_ANSWER_SECONDS,
    )
    module.add(tools.task_status, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    module.add(tools.task_logs, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    module.add(tools.list_tasks, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    patience = _ANSWER_SECONDS + settings.grace_seconds
    module.add(tools.cancel_task, permission="user", effect="idempotent", timeout_seconds=patience)
    return module
