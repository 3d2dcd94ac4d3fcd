"""The tools of `deployer`: projects become deployments, which serve until they are stopped.

Sites are served by the module itself. A declared process runs in a sandbox where the machine allows one, and its address leads
into it.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from modules.deployer.deployment import Deployment, Status
from modules.deployer.deployments import Deployments
from modules.deployer.plan import DeployRefused, Kind
from modules.kept_commands import LogPart
from toolfleet.sdk import Context, ToolError

DeploymentId = Annotated[str, Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class Shown:
    """A deployment as a model sees it."""

    deployment_id: str
    name: str
    status: Status
    url: str | None
    release: str | None
    kind: Kind | None
    releases: list[str]
    restarts: int
    error: str | None


class Deployer:
    """Deployments belong to the user who made them, and do not exist for anybody else."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    async def deploy(
        self,
        project_path: Annotated[str, Field(min_length=1, max_length=4000)],
        user_id: str,
        context: Context,
        name: Annotated[str, Field(max_length=40)] | None = None,
        kind: Kind | None = None,
    ) -> Shown:
        """Deploy a project of yours and return its url, once it answers there.

        Args:
            project_path: The workspace, as claude_code.task_status names it, or a folder in it.
            name: Under which name; another project under the same name replaces it. By default the workspace's.
            kind: static or process; by default process if there is a deploy.json.
        """

        def say(fraction: float, message: str) -> None:
            context.progress(fraction, message)

        try:
            return _shown(await self._deployments.deploy(project_path, user_id=user_id, name=name, kind=kind, say=say))
        except DeployRefused as exc:
            raise _refused(exc) from exc

    async def deployment_status(self, deployment_id: DeploymentId, user_id: str) -> Shown:
        """Say whether a deployment runs, where, and which release.

        Args:
            deployment_id: The deployment, as deployer.deploy named it.
        """
        return _shown(self._get(deployment_id, user_id))

    async def deployment_logs(
        self,
        deployment_id: DeploymentId,
        user_id: str,
        offset: int = -10_000,
        limit: Annotated[int, Field(ge=1, le=50_000)] = 10_000,
    ) -> LogPart:
        """Read what the latest process of a deployment has printed. A static site prints nothing.

        Args:
            deployment_id: The deployment, as deployer.deploy named it.
            offset: The byte to begin at, such as the next_offset of the last answer; negative: from the end.
            limit: How many bytes at most.
        """
        return await asyncio.to_thread(self._get(deployment_id, user_id).log, offset, limit)

    async def list_deployments(self, user_id: str) -> list[Shown]:
        """List your deployments."""
        return [_shown(deployment) for deployment in self._deployments.list(user_id=user_id)]

    async def rollback(self, deployment_id: DeploymentId, user_id: str) -> Shown:
        """Let the release before the present one serve again. Each call goes back one further.

        Args:
            deployment_id: The deployment, as deployer.deploy named it.
        """
        try:
            return _shown(await self._deployments.rollback(deployment_id, user_id=user_id))
        except DeployRefused as exc:
            raise _refused(exc) from exc

    async def stop_deployment(self, deployment_id: DeploymentId, user_id: str) -> Shown:
        """End a deployment. Its releases are kept; deploying the project again starts it. One that never served is removed.

        Args:
            deployment_id: The deployment, as deployer.deploy named it.
        """
        try:
            return _shown(await self._deployments.stop(deployment_id, user_id=user_id))
        except DeployRefused as exc:
            raise _refused(exc) from exc

    def _get(self, deployment_id: str, user_id: str) -> Deployment:
        try:
            return self._deployments.get(deployment_id, user_id=user_id)
        except DeployRefused as exc:
            raise _refused(exc) from exc


def _shown(deployment: Deployment) -> Shown:
    record = deployment.record
    current = record.current
    return Shown(
        deployment_id=record.deployment_id,
        name=record.name,
        status=deployment.status,
        url=deployment.url,
        release=current.release_id if current else None,
        kind=current.kind if current else None,
        releases=list(record.history),
        restarts=deployment.restarts,
        error=deployment.error,
    )


def _refused(exc: DeployRefused) -> ToolError:
    return ToolError(str(exc), effect_state="none")
