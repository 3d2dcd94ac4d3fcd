"""What is known of a file."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Source = Literal["upload", "code_executor", "file_manager"]
"""Who saved it: the user, a program, or the model."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One content under one name of one user. Who replaces a file makes a new record."""

    file_id: str
    user_id: str
    name: str
    media_type: str
    size: int  # bytes
    sha256: str
    created_at: datetime  # UTC
    source: Source
    key: str  # where the store has the content
    version: int = 1  # one more with each replacement
