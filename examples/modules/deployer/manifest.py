"""What `deployer` offers, who may call it, and what a repeat would do."""

from modules.deployer.deployments import Deployments
from modules.deployer.settings import DeployerSettings
from modules.deployer.tools import Deployer
from toolfleet.sdk import Module

_COPY_SECONDS = 60  # for the project, and for the two tries that a process may need
_ANSWER_SECONDS = 20


def module_for(settings: DeployerSettings) -> Module:
    """The module on the deployments under one root.

    Whoever deploys starts programs on this machine and shows pages to others: that is for admins. To look at one's own
    deployments, and to end them, needs no such trust.
    """
    deployments = Deployments(settings)
    tools = Deployer(deployments)
    module = Module("deployer", description="Deploys projects on this machine.")
    module.lifespan(deployments.running)
    start = _COPY_SECONDS + 2 * settings.start_seconds
    # The same project under the same name is the same release: a repeat finds it running.
    module.add(tools.deploy, permission="admin", effect="idempotent", timeout_seconds=start)
    module.add(tools.rollback, permission="admin", effect="once", timeout_seconds=start)
    module.add(tools.deployment_status, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    module.add(tools.deployment_logs, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    module.add(tools.list_deployments, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    # It waits for a deployment that has just begun, and for the process to end.
    module.add(tools.stop_deployment, permission="user", effect="idempotent", timeout_seconds=start)
    return module
