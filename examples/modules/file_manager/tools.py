"""The tools of `file_manager`. What a name may be and where files live is the business of `files`."""

import base64
import csv
import io
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from modules.files import FilePipeline, FileRecord
from toolfleet.sdk import ToolError

Name = Annotated[str, Field(description="The file's name, such as 'sales.csv'. There are no folders.")]
Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class FileManager:
    """Each user's own files."""

    files: FilePipeline

    async def create_document(
        self, name: Name, user_id: str | None, content: str | None = None, rows: list[list[Cell]] | None = None
    ) -> dict[str, Any]:
        """Write a text or CSV file of the user. Replaces a file of the same name.

        Args:
            content: The whole text. Give either this or rows.
            rows: The lines of a CSV file, each an array of values; the first line is the header. Quoted as needed.
        """
        if (content is None) == (rows is None):
            raise ToolError("Give either content (text) or rows (the lines of a CSV file).", effect_state="none")
        data = (_csv(rows) if rows is not None else content or "").encode()
        record = await self.files.save(user_id, name, data, "file_manager")
        return {"name": record.name, "bytes": record.size, "created": record.version == 1}

    async def read_document(
        self,
        name: Name,
        user_id: str | None,
        start: Annotated[int, Field(ge=0)] = 0,
        max_chars: Annotated[int, Field(ge=1, le=200_000)] = 20_000,
    ) -> dict[str, Any]:
        """Read a text file of the user, or a part of it.

        Args:
            start: The first character to read.
            max_chars: How many characters to read.
        """
        data = await self.files.read(user_id, name)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{name!r} is not a text file in UTF-8; get_file returns its bytes.") from None
        part = text[start : start + max_chars]
        return {"name": name, "content": part, "start": start, "total_chars": len(text)}

    async def get_file(
        self,
        name: Name,
        user_id: str | None,
        start: Annotated[int, Field(ge=0)] = 0,
        max_bytes: Annotated[int, Field(ge=0, le=131_072)] = 0,
    ) -> dict[str, Any]:
        """Say what is known of a file of the user: size in bytes, media type, SHA-256, who saved it and when.

        With max_bytes also a part of its content in base64, for files that are no text.

        Args:
            start: The first byte of that part.
            max_bytes: How many bytes of the content to return.
        """
        if not max_bytes:
            return _details(await self.files.find(user_id, name))
        record, data = await self.files.open(user_id, name)
        part = base64.b64encode(data[start : start + max_bytes]).decode()
        return {**_details(record), "start": start, "content_base64": part}

    async def list_files(self, user_id: str | None) -> dict[str, Any]:
        """List the user's files with their sizes in bytes, when they were last written, and their source.

        The source is upload, file_manager, or code_executor for what a program has saved.
        """
        return {"files": [_line(record) for record in await self.files.list(user_id)]}

    async def delete_file(self, name: Name, user_id: str | None) -> dict[str, Any]:
        """Delete a file of the user for good. Deleting a file that is not there does nothing."""
        return {"name": name, "deleted": await self.files.delete(user_id, name)}


def _line(record: FileRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "bytes": record.size,
        "modified": record.created_at.isoformat(timespec="seconds"),
        "media_type": record.media_type,
        "source": record.source,
    }


def _details(record: FileRecord) -> dict[str, Any]:
    return {"file_id": record.file_id, **_line(record), "sha256": record.sha256, "version": record.version}


def _csv(rows: list[list[Cell]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
