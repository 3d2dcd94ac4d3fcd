"""`uvicorn modules.file_manager.main:app` starts the module."""

from modules.file_manager.manifest import MANIFEST
from modules.file_manager.tools import FileManager
from modules.service import create_app
from modules.user_files import FileSettings

app = create_app(MANIFEST, FileManager(FileSettings()))
