"""What `file_manager` offers, who may call it, and what a repeat would do."""

from modules.file_manager.tools import FileManager
from modules.files import FilePipeline
from toolfleet.sdk import Module


def module_for(files: FilePipeline) -> Module:
    """The module on the files of one pipeline, which it closes at its end."""
    tools = FileManager(files)
    module = Module(
        "file_manager",
        description="Creates, reads, lists and deletes the files of the user who asks. No user sees another's.",
    )
    module.on_shutdown(files.close)
    module.add(tools.create_document, permission="guest", effect="idempotent")
    module.add(tools.read_document, permission="guest", effect="read")
    module.add(tools.get_file, permission="guest", effect="read")
    module.add(tools.list_files, permission="guest", effect="read")
    module.add(tools.delete_file, permission="user", effect="idempotent")
    return module
