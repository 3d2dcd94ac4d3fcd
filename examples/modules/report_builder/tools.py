"""The tools of `report_builder`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.documents import CLONE, Document, read_documents
from modules.files import FilePipeline, FileRecord
from modules.report_builder import chapters
from toolfleet.sdk import Context

Title = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]


class ReportSettings(BaseSettings):
    """`REPORT_BUILDER_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="REPORT_BUILDER_", frozen=True, env_ignore_empty=True)

    docs_root: Path = CLONE
    """The Markdown files below it are what a report is about."""


@dataclass(frozen=True, slots=True)
class ReportBuilder:
    """Builds reports step by step, tells how far it is, and stops between two steps when nobody waits any more."""

    settings: ReportSettings
    files: FilePipeline

    async def build_report(
        self, title: Title, user_id: str | None, context: Context, seconds: Seconds = 5
    ) -> dict[str, Any]:
        """Build a report in Markdown on this project's documentation and on the user's files. Takes its time.

        Args:
            title: The report's title.
            seconds: How long to take over it, at least.
        """
        documents = await asyncio.to_thread(read_documents, self.settings.docs_root)
        files = await self.files.list(user_id) if user_id else []
        contents = _contents(documents, files)
        parts = [f"# {title}"]
        for number, (heading, write) in enumerate(contents.items()):
            await context.progress(number / len(contents), heading)
            parts.append(f"## {heading}\n\n{await asyncio.to_thread(write)}")
            await asyncio.sleep(seconds / len(contents))
        return {"title": title, "chapters": len(contents), "markdown": "\n\n".join(parts)}

    async def quick_report(
        self, title: Title, user_id: str | None, context: Context, seconds: Seconds = 5
    ) -> dict[str, Any]:
        """Build the same report, for those who cannot wait: it has to be done within 2 s.

        Args:
            title: The report's title.
            seconds: How long to take over it, at least.
        """
        return await self.build_report(title, user_id, context, seconds)


def _contents(documents: list[Document], files: list[FileRecord]) -> dict[str, Callable[[], str]]:
    return {
        "Overview": lambda: chapters.overview(documents, files),
        "Documents": lambda: chapters.documents_by_size(documents),
        "Longest sections": lambda: chapters.longest_sections(documents),
        "Your files": lambda: chapters.files_by_name(files),
    }
