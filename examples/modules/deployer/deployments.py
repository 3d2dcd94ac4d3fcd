"""All deployments of a module: who may touch which, and what deploying, going back and stopping do."""

import asyncio
import fcntl
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from modules.deployer.deployment import Deployment
from modules.deployer.plan import DeployRefused, Kind, Plan, plan_for
from modules.deployer.record_store import NAME, Record, RecordStore
from modules.deployer.releases import Release, take_release
from modules.deployer.settings import DeployerSettings
from modules.workspaces import Project, find_project

Say = Callable[[float, str], object]

logger = logging.getLogger(__name__)


class Deployments:
    """Use it inside `running`. One module at a time has them: two would start everything twice."""

    def __init__(self, settings: DeployerSettings) -> None:
        self._settings = settings
        self._store = RecordStore(settings)
        self._known: dict[str, Deployment] = {}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Bring back what ran, and end it all at the end. Raises `RuntimeError` if another module has the root."""
        with self._owned():
            for record in await asyncio.to_thread(self._store.records):
                self._known[record.deployment_id] = Deployment(record, self._store, self._settings)
            try:
                await asyncio.gather(*(self._resume(deployment) for deployment in self._known.values()))
                yield
            finally:
                await asyncio.gather(*(deployment.close() for deployment in self._known.values()))
                self._known.clear()

    async def deploy(self, path: str, *, user_id: str, name: str | None, kind: Kind | None, say: Say) -> Deployment:
        """Copy the project, start it, and let it take over once it is healthy.

        What serves already stays as it is. Raises `DeployRefused`.
        """
        project = await asyncio.to_thread(find_project, path, user_id=user_id, roots=self._settings.workspaces)
        if project is None:
            raise DeployRefused(
                f"{path[:300]!r} is not a folder in a workspace of yours; use the one that the task's status names."
            )
        plan = await asyncio.to_thread(_plan, project, kind)
        record = await asyncio.to_thread(self._store.claim, user_id, _name(name, project), time.time())
        deployment = self._known.setdefault(record.deployment_id, Deployment(record, self._store, self._settings))
        async with deployment.turn:
            if self._known.get(record.deployment_id) is not deployment:
                raise DeployRefused(f"{record.deployment_id} has just been removed; deploy again.")
            say(0.2, "copying the project")
            release = await asyncio.to_thread(self._take, project, plan, record)
            if not deployment.is_serving(release.release_id):
                say(0.5, "starting it")
                await self._switch(
                    deployment, release, _with(deployment.record.history, release.release_id, self._settings)
                )
        say(1.0, "it answers")
        return deployment

    async def rollback(self, deployment_id: str, *, user_id: str) -> Deployment:
        """Let the release before the present one serve again. Raises `DeployRefused`."""
        deployment = self.get(deployment_id, user_id=user_id)
        async with deployment.turn:
            *before, _ = deployment.record.history or ("",)
            if not before:
                raise DeployRefused(f"{deployment_id!r} has no release to go back to.")
            await self._switch(deployment, deployment.record.releases[before[-1]], tuple(before))
        return deployment

    async def stop(self, deployment_id: str, *, user_id: str) -> Deployment:
        """End it. Its releases are kept, and deploying starts it again; one that never served is removed.

        Raises `DeployRefused`.
        """
        deployment = self.get(deployment_id, user_id=user_id)
        async with deployment.turn:
            await deployment.stop()
            if not deployment.record.history:
                self._known.pop(deployment_id, None)
                await asyncio.to_thread(self._store.remove, deployment.record)
        return deployment

    def get(self, deployment_id: str, *, user_id: str) -> Deployment:
        """The user's deployment. Raises `DeployRefused`, with the same words for one of another user and for none."""
        deployment = self._known.get(deployment_id)
        if deployment is None or deployment.record.user_id != user_id:
            raise DeployRefused(
                f"You have no deployment {deployment_id[:100]!r}; list the deployments to see which there are."
            )
        return deployment

    def list(self, *, user_id: str) -> list[Deployment]:
        """The user's, sorted by id."""
        found = [deployment for deployment in self._known.values() if deployment.record.user_id == user_id]
        return sorted(found, key=lambda deployment: deployment.record.deployment_id)

    async def _switch(self, deployment: Deployment, release: Release, history: tuple[str, ...]) -> None:
        current = deployment.record.current
        try:
            await deployment.switch(release, history)
        except DeployRefused as exc:
            kept = (
                f", and {current.release_id} still serves"
                if current and deployment.is_serving(current.release_id)
                else ""
            )
            if current is None:
                deployment.error = str(exc)
            raise DeployRefused(f"Release {release.release_id} did not take over{kept}. {exc}") from exc
        finally:
            await asyncio.to_thread(self._store.forget_releases, deployment.record)

    def _take(self, project: Project, plan: Plan, record: Record) -> Release:
        try:
            with project.opened() as folder:
                releases = self._store.folder(record.deployment_id) / "releases"
                settings = self._settings
                return take_release(
                    folder, plan, releases, max_files=settings.project_files, max_mb=settings.project_mb
                )
        except OSError as exc:
            raise DeployRefused(f"The project cannot be read ({exc.strerror}).") from exc

    async def _resume(self, deployment: Deployment) -> None:
        try:
            await asyncio.to_thread(self._store.forget_releases, deployment.record)
            await deployment.resume()
        except (
            DeployRefused,
            OSError,
        ) as exc:  # one that cannot be brought back is shown as failed; the others come back
            logger.exception("%s could not be brought back", deployment.record.deployment_id)
            deployment.error = str(exc)

    @contextmanager
    def _owned(self) -> Generator[None]:
        self._store.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._store.root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RuntimeError(
                f"Another deployer works in {self._store.root}; give this one a DEPLOYER_ROOT of its own."
            ) from None
        try:
            yield
        finally:
            os.close(lock)


def _plan(project: Project, kind: Kind | None) -> Plan:
    try:
        with project.opened() as folder:
            return plan_for(folder, kind)
    except OSError as exc:
        raise DeployRefused(f"The project cannot be read ({exc.strerror}).") from exc


def _name(name: str | None, project: Project) -> str:
    if name is None:
        # A sub-folder such as dist/ says nothing: the workspace's name does.
        return re.sub(r"[^a-z0-9]+", "-", project.parts[0].lower()).strip("-")[:40].strip("-") or "site"
    if not NAME.fullmatch(name):
        raise DeployRefused("A deployment's name has 1 to 40 small letters, digits and hyphens, such as 'owl-page'.")
    return name


def _with(history: tuple[str, ...], release_id: str, settings: DeployerSettings) -> tuple[str, ...]:
    """A release that has served before moves to the end."""
    return (*(each for each in history if each != release_id), release_id)[-settings.keep_releases :]
