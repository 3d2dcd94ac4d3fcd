"""What is known of deployments, on disk: a folder each, with a record, the releases and the logs."""

import contextlib
import hashlib
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from modules.deployer.plan import DeployRefused
from modules.deployer.releases import DRAFT, Release
from modules.deployer.settings import DeployerSettings

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_RECORD = "deployment.json"


class Record(BaseModel):
    """A deployment. `history` has the ids of its releases in the order in which they took over, the present one last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment_id: str
    user_id: str
    name: str
    created_at: float
    wanted: Literal["running", "stopped"] = "stopped"
    port: int | None = None
    releases: dict[str, Release] = {}
    history: tuple[str, ...] = ()

    @property
    def current(self) -> Release | None:
        """The release that serves, or would."""
        return self.releases[self.history[-1]] if self.history else None


class RecordStore:
    """All deployments under one root. Blocks, but never for long."""

    def __init__(self, settings: DeployerSettings) -> None:
        self.root = settings.root.resolve()
        self._settings = settings
        self._lock = threading.Lock()

    def folder(self, deployment_id: str) -> Path:
        """Where everything of a deployment lies."""
        return self.root / deployment_id

    def release_folder(self, deployment_id: str, release_id: str) -> Path:
        """The files of a release."""
        return self.folder(deployment_id) / "releases" / release_id

    def records(self) -> list[Record]:
        """All of them, sorted by id. One that cannot be read is left out."""
        found: list[Record] = []
        for path in sorted(self.root.glob(f"*/{_RECORD}")):
            with contextlib.suppress(OSError, ValueError):
                found.append(Record.model_validate_json(path.read_bytes()))
        return found

    def claim(self, user_id: str, name: str, now: float) -> Record:
        """The user's deployment of this name; a new one if there is none. Raises `DeployRefused`."""
        deployment_id = deployment_id_of(user_id, name)
        with self._lock:
            records = self.records()
            for record in records:
                if record.deployment_id == deployment_id:
                    return record
            own = sum(record.user_id == user_id for record in records)
            if own >= self._settings.deployments or len(records) >= self._settings.all_deployments:
                raise DeployRefused(
                    f"There are {own} deployments of yours, the most there is room for. Deploy under one of their names, "
                    "or stop one that has never served: that removes it."
                )
            record = Record(deployment_id=deployment_id, user_id=user_id, name=name, created_at=now)
            self.save(record)
            return record

    def save(self, record: Record) -> None:
        """Keep the record, whole or not at all."""
        folder = self.folder(record.deployment_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / f"{DRAFT}{_RECORD}"
        with draft.open("wb") as file:
            file.write(record.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _RECORD)

    def remove(self, record: Record) -> None:
        """Forget a deployment, with all that lies in its folder."""
        (self.folder(record.deployment_id) / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.folder(record.deployment_id), ignore_errors=True)

    def forget_releases(self, record: Record) -> None:
        """Remove the files of releases that the record no longer names, and what a crash has left half copied."""
        with contextlib.suppress(FileNotFoundError):
            for path in (self.folder(record.deployment_id) / "releases").iterdir():
                if path.name not in record.releases:
                    shutil.rmtree(path, ignore_errors=True)


def deployment_id_of(user_id: str, name: str) -> str:
    """The same for the same user and name; no two users share one."""
    return f"{name}-{hashlib.sha256(f'{len(name)}:{name}:{user_id}'.encode()).hexdigest()[:10]}"
