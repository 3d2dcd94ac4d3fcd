"""Where users' files are kept, and how many."""

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_CLONE = Path(__file__).resolve().parents[3]


class FileSettings(BaseSettings):
    """`FILE_MANAGER_…` and `FILES_…` in the environment; all who share users' files read the same ones.

    The store's keys and region come from the usual `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`.
    """

    model_config = SettingsConfigDict(
        env_prefix="FILE_MANAGER_", frozen=True, env_ignore_empty=True, populate_by_name=True, hide_input_in_errors=True
    )

    root: Path = _CLONE / ".toolfleet" / "files"
    """The folder, unless `FILES_STORE` names another place."""
    max_bytes: int = Field(default=2**20, gt=0)
    """Of one file: far more than a model can read. A file is held in memory while it is saved or read, and must pass in 4 s."""
    max_files: int = Field(default=200, gt=0)
    """Of one user."""
    store: str | None = Field(default=None, alias="FILES_STORE")
    """A folder, or `s3://bucket/prefix`."""
    s3_endpoint: str | None = Field(default=None, alias="FILES_S3_ENDPOINT")
    """Such as `http://minio:9000`; Amazon's own if not set."""
    database_url: str | None = Field(default=None, alias="FILES_DATABASE_URL", repr=False)
    """`sqlite:///…` or `postgresql+pg8000://…`; a SQLite file in the store's folder if not set."""

    @property
    def folder(self) -> Path | None:
        """Where contents lie, if not in S3."""
        if self.store is None:
            return self.root
        return None if _is_s3(self.store) else Path(self.store)

    @model_validator(mode="after")
    def _must_fit(self) -> Self:
        if self.store is not None and _is_s3(self.store):
            if not urlsplit(self.store).netloc:
                raise ValueError("FILES_STORE names no bucket: it must be like s3://bucket/prefix.")
            if self.database_url is None:
                raise ValueError("FILES_STORE is in S3, so FILES_DATABASE_URL must name the database of its records.")
        elif self.store is not None and "://" in self.store:
            raise ValueError("FILES_STORE must be a folder, or s3://bucket/prefix.")
        if self.s3_endpoint is not None and urlsplit(self.s3_endpoint).scheme not in {"http", "https"}:
            raise ValueError("FILES_S3_ENDPOINT must begin with http:// or https://.")
        return self


def _is_s3(store: str) -> bool:
    return store.startswith("s3://")
