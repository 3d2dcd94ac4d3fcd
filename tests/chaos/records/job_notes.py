"""What agents noted of the jobs that they made, and what Redis has of each: how it ended, and what it was to cause."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from redis import Redis

from toolfleet_registry.contracts.jobs import JobSpec, JobState
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.jobs.completion import EndNote
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.messages import json_text

_CHUNK = 500


class JobNote(BaseModel):
    """One job that was asked for. `ref` is its intention, and its name in the fleet.

    `job_ids`: what each time of asking gave; `error`: what the last one raised instead. `cancelled`: what cancelling gave;
    `cancel_error`: what it raised.
    """

    model_config = ConfigDict(frozen=True)

    ref: str
    shape: str
    ends: str
    asked_at: float
    seconds: float
    job_ids: tuple[str, ...] = ()
    refused: str | None = None
    error: str | None = None
    is_cancelled: bool = False
    cancelled: JobState | None = None
    cancel_error: str | None = None


@dataclass(frozen=True)
class JobRecord:
    """A job as Redis has it after the run."""

    spec: JobSpec
    place: JobPosition
    end: EndNote | None

    @property
    def job_id(self) -> str:
        return self.spec.job_id

    @property
    def recurs(self) -> bool:
        return self.spec.schedule is not None and self.spec.schedule.cron is not None


def notes_of(folder: Path) -> Path:
    """Where the agent that makes jobs writes them down."""
    return folder / "jobs.jsonl"


def read_notes(path: Path) -> list[JobNote]:
    """All that it wrote down."""
    return [JobNote.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_records(look: Redis) -> dict[str, JobRecord]:
    """All jobs in Redis, by their ids. Raises `ValueError` for a record that cannot be read."""
    return {record.job_id: record for record in _records(look)}


def _records(look: Redis) -> Iterator[JobRecord]:
    for key in look.scan_iter(match=Keys().job("*"), count=_CHUNK):
        fields: Any = look.hgetall(str(key))
        end = fields.get("end")
        yield JobRecord(
            json_text.load(JobSpec, fields["spec"]),
            json_text.load(JobPosition, fields["at"]),
            json_text.load(EndNote, end) if end else None,
        )
