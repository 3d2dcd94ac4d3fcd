"""The tools of `report_builder`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.documents import CLONE, Document, read_documents
from modules.report_builder import chapters
from modules.user_files import FileEntry, FileSettings, UserFiles

Title = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]


class ReportSettings(BaseSettings):
    """`REPORT_BUILDER_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="REPORT_BUILDER_", frozen=True, env_ignore_empty=True)

    docs_root: Path = CLONE
    """The Markdown files below it are what a report is about."""


@dataclass(frozen=True, slots=True)
class ReportBuilder:
    """Builds reports step by step, and stops between two steps when nobody waits any more."""

    settings: ReportSettings
    file_settings: FileSettings

    async def build_report(self, *, title: Title, seconds: Seconds = 5, user_id: str | None) -> dict[str, Any]:
        """Build a report, a chapter at a time."""
        documents = await asyncio.to_thread(read_documents, self.settings.docs_root)
        files = await asyncio.to_thread(self._files, user_id)
        contents = _contents(documents, files)
        parts = [f"# {title}"]
        for heading, write in contents.items():
            parts.append(f"## {heading}\n\n{await asyncio.to_thread(write)}")
            await asyncio.sleep(seconds / len(contents))
        return {"title": title, "chapters": len(contents), "markdown": "\n\n".join(parts)}

    async def quick_report(self, *, title: Title, seconds: Seconds = 5, user_id: str | None) -> dict[str, Any]:
        """The same work; only the manifest gives it less time."""
        return await self.build_report(title=title, seconds=seconds, user_id=user_id)

    def _files(self, user_id: str | None) -> list[FileEntry]:
        return UserFiles.of(user_id, self.file_settings).entries() if user_id else []


def _contents(documents: list[Document], files: list[FileEntry]) -> dict[str, Callable[[], str]]:
    return {
        "Overview": lambda: chapters.overview(documents, files),
        "Documents": lambda: chapters.documents_by_size(documents),
        "Longest sections": lambda: chapters.longest_sections(documents),
        "Your files": lambda: chapters.files_by_name(files),
    }
