"""What `deployer` offers, who may call it, and what a repeat would do."""

from modules.command_isolation import described, isolation_at_start
from modules.deployer.deployments import Deployments
from modules.deployer.settings import DeployerSettings
from modules.deployer.tools import Deployer
from toolfleet.sdk import Module

_COPY_SECONDS = 60  # for the project, and for the two tries that a process may need
_ANSWER_SECONDS = 20
_DEPLOY = (
    "Deploy a project of yours and return its url, once it answers there. What serves until then is not disturbed. A project is "
    "a folder with a built site (index.html in dist/, public/, build/ or the folder itself), or one with a deploy.json such as "
    '{"command": ["python", "app.py"], "health": "/health"}; the process finds its port in PORT. Deploying what is deployed '
    "already changes nothing."
)


def module_for(settings: DeployerSettings) -> Module:
    """The module on the deployments under one root.

    Whoever deploys starts programs on this machine and shows pages to others: that is for admins. To look at one's own
    deployments, and to end them, needs no such trust. What keeps processes apart is in the tool's description. Raises
    `RuntimeError` if that is not what the settings demand.
    """
    isolation = isolation_at_start(settings.isolation, network=settings.network, module="deployer")
    deployments = Deployments(settings)
    tools = Deployer(deployments)
    module = Module("deployer", description="Deploys projects on this machine.")
    module.lifespan(deployments.running)
    start = _COPY_SECONDS + 2 * settings.start_seconds
    # The same project under the same name is the same release: a repeat finds it running.
    module.add(
        tools.deploy,
        description=f"{_DEPLOY} Of a process: {described(isolation, network=settings.network)}",
        permission="admin",
        effect="idempotent",
        timeout_seconds=start,
    )
    module.add(tools.rollback, permission="admin", effect="once", timeout_seconds=start)
    module.add(tools.deployment_status, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    module.add(tools.deployment_logs, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    module.add(tools.list_deployments, permission="user", effect="read", timeout_seconds=_ANSWER_SECONDS)
    # It waits for a deployment that has just begun, and for the process to end.
    module.add(tools.stop_deployment, permission="user", effect="idempotent", timeout_seconds=start)
    return module
