"""The tools of `file_manager`. What a name may be and where files live is the business of `user_files`."""

import asyncio
import csv
import io
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from modules.service import ToolError
from modules.user_files import FileSettings, UserFiles

_Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class FileManager:
    """Each user's own files. Disks can be slow: all work on them is done in threads."""

    settings: FileSettings

    async def create_document(
        self,
        *,
        name: str,
        content: str | None = None,
        rows: list[list[_Cell]] | None = None,
        user_id: str | None,
    ) -> dict[str, Any]:
        """Write a text or CSV file."""
        if (content is None) == (rows is None):
            raise ToolError("Give either content (text) or rows (the lines of a CSV file).")
        data = (_csv(rows) if rows is not None else content or "").encode()
        created = await asyncio.to_thread(UserFiles.of(user_id, self.settings).write, name, data)
        return {"name": name, "bytes": len(data), "created": created}

    async def read_document(
        self,
        *,
        name: str,
        start: Annotated[int, Field(ge=0)] = 0,
        max_chars: Annotated[int, Field(ge=1, le=200_000)] = 20_000,
        user_id: str | None,
    ) -> dict[str, Any]:
        """Read a part of a text file."""
        data = await asyncio.to_thread(UserFiles.of(user_id, self.settings).read, name)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{name!r} is not a text file in UTF-8.") from None
        part = text[start : start + max_chars]
        return {"name": name, "content": part, "start": start, "total_chars": len(text)}

    async def list_files(self, *, user_id: str | None) -> dict[str, Any]:
        """All files of the user."""
        entries = await asyncio.to_thread(UserFiles.of(user_id, self.settings).entries)
        return {
            "files": [
                {"name": entry.name, "bytes": entry.bytes, "modified": entry.modified.isoformat(timespec="seconds")}
                for entry in entries
            ]
        }

    async def delete_file(self, *, name: str, user_id: str | None) -> dict[str, Any]:
        """Remove a file."""
        deleted = await asyncio.to_thread(UserFiles.of(user_id, self.settings).delete, name)
        return {"name": name, "deleted": deleted}


def _csv(rows: list[list[_Cell]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
