"""What `knowledge` offers, who may call it, and what a repeat would do."""

from modules.files import FileSettings
from modules.files.database import Database
from modules.knowledge.notes import Notes
from modules.knowledge.settings import KnowledgeSettings
from modules.knowledge.tables import METADATA
from modules.knowledge.tools import Knowledge
from toolfleet.sdk import Module

_SECONDS = 20  # the database is waited for, for five at each step


def module_for(settings: KnowledgeSettings, files: FileSettings) -> Module:
    """The module on the database of users' files. Raises `ValueError` for settings that cannot be right."""
    database = Database(files, tables=METADATA, what="notes")
    tools = Knowledge(Notes(database, max_notes=settings.max_notes), settings.max_chars)
    module = Module(
        "knowledge", description="Remembers notes for the user who asks, and finds them again. No user sees another's."
    )
    module.on_shutdown(database.close)
    # A title is saved once, whoever repeats it: so all that write may be repeated.
    module.add(tools.save, permission="guest", effect="idempotent", timeout_seconds=_SECONDS)
    module.add(tools.search, permission="guest", effect="read", timeout_seconds=_SECONDS)
    module.add(tools.get, permission="guest", effect="read", timeout_seconds=_SECONDS)
    module.add(tools.list, name="list", permission="guest", effect="read", timeout_seconds=_SECONDS)
    module.add(tools.delete, permission="user", effect="idempotent", timeout_seconds=_SECONDS)
    return module
