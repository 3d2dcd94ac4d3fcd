"""Why files cannot be had. Both are errors of a tool: their sentences are for the model, and hold no secret."""

from toolfleet.sdk import ToolError


class FileRefused(ToolError):
    """What was asked for cannot be done with this name, size or user; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, effect_state="none")


class FilesUnavailable(ToolError):
    """The store or its database does not answer. Whether a file was saved or deleted is not known; both may be repeated."""
