"""Users' files, for every module and for an agent's core: contents in a folder or in S3, records of them in SQL."""

from modules.files.errors import FileRefused, FilesUnavailable
from modules.files.pipeline import FilePipeline, open_pipeline
from modules.files.record import FileRecord, Source
from modules.files.settings import FileSettings

__all__ = [
    "FilePipeline",
    "FileRecord",
    "FileRefused",
    "FileSettings",
    "FilesUnavailable",
    "Source",
    "open_pipeline",
]
