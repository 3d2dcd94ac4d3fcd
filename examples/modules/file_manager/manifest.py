"""What `file_manager` offers."""

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition, ToolParameter

_NAME = ToolParameter(
    name="name", type="string", description="The file's name, such as 'sales.csv'. There are no folders."
)
_CONTENT = ToolParameter(
    name="content", type="string", description="The whole text. Give either this or rows.", required=False
)
_ROWS = ToolParameter(
    name="rows",
    type="array",
    description="The lines of a CSV file, each an array of values; the first line is the header. Quoted as needed.",
    required=False,
)

CREATE_DOCUMENT = ToolDefinition(
    name="file_manager.create_document",
    description="Write a text or CSV file of the user. Replaces a file of the same name.",
    parameters=[_NAME, _CONTENT, _ROWS],
    # A flat parameter cannot say what an array holds, and some model providers refuse an array that does not.
    input_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": _NAME.description},
            "content": {"type": "string", "description": _CONTENT.description},
            "rows": {
                "type": "array",
                "description": _ROWS.description,
                "items": {"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}},
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    required_permission="guest",
    effect="idempotent",
)

READ_DOCUMENT = ToolDefinition(
    name="file_manager.read_document",
    description="Read a text file of the user, or a part of it.",
    parameters=[
        _NAME,
        ToolParameter(
            name="start", type="integer", description="The first character to read; 0 by default.", required=False
        ),
        ToolParameter(
            name="max_chars",
            type="integer",
            description="How many characters to read; 20000 by default, 200000 at most.",
            required=False,
        ),
    ],
    required_permission="guest",
    effect="read",
)

LIST_FILES = ToolDefinition(
    name="file_manager.list_files",
    description="List the user's files with their sizes in bytes and when they were last written.",
    required_permission="guest",
    effect="read",
)

DELETE_FILE = ToolDefinition(
    name="file_manager.delete_file",
    description="Delete a file of the user for good. Deleting a file that is not there does nothing.",
    parameters=[_NAME],
    required_permission="user",
    effect="idempotent",
)

MANIFEST = ModuleManifest(
    module_name="file_manager",
    description="Creates, reads, lists and deletes the files of the user who asks. No user sees another's.",
    tools=[CREATE_DOCUMENT, READ_DOCUMENT, LIST_FILES, DELETE_FILE],
)
