"""Describes what an outside system says of a job's work, and what it is answered."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolfleet_registry.contracts.jobs import JobState


class HookBody(BaseModel):
    """How the work has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    job_id: str | None = Field(default=None, max_length=200)
    """The job, as in the path: of a request only the body is signed. Required where the job's hook says so."""
    success: bool
    """Whether it was done."""
    result: Any = None
    """What it has brought, if it was done: any JSON."""
    error: str | None = Field(default=None, max_length=10_000)
    """What went wrong, if it was not."""

    @model_validator(mode="after")
    def _check_what_goes_together(self) -> Self:
        if self.success and self.error is not None:
            raise ValueError("work that was done has no `error`")
        if not self.success and self.result is not None:
            raise ValueError("work that was not done has an `error`, and no `result`")
        return self


class HookAnswer(BaseModel):
    """A job that has ended as the request says; the same for each repeat of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    job_id: str
    """Which one."""
    state: JobState
    """How it has ended."""
