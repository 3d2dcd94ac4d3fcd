"""Describes what a host does not serve as it stands: a file of a tool folder, or an operation of a document."""

from typing import Literal

from pydantic import Field

from toolfleet_registry.contracts.message import ModuleMessage

NO_TOOLS = "NoTools"
"""The `error_type` of a note: nothing is wrong with the file, and it has no tools."""

InEffect = Literal["previous", "current", "none"]
"""Which version of the file serves calls now: one before, this one all the same, or none."""


class ToolLoadError(ModuleMessage):
    """Why a file of a tool folder, or an operation of an OpenAPI document, is not served as it stands."""

    file: str = Field(min_length=1, max_length=1024)
    """The file's path on its host's machine; of an operation, the document and `GET /owls`."""
    error_type: str = Field(min_length=1, max_length=100)
    """`SyntaxError`, `ImportError`, `SecurityError`, `DuplicateTool`, `InvalidTool`, `LoadTimeout`, `ProcessEnded`, `FileRefused`, `NoTools` (a note), or the class that was raised; of a document, `DocumentWrong`, `CredentialMissing`, `InvalidSchema` and the like."""
    message: str = Field(default="", max_length=1000)
    """What is wrong, in one sentence."""
    timestamp: float = Field(default=0, ge=0, allow_inf_nan=False)
    """When it was found: seconds since the epoch, by the host's clock."""
    line: int | None = None
    """The line that it is about, if it is about one."""
    in_effect: InEffect = "none"
    """Which version of the file serves calls now."""

    @property
    def is_note(self) -> bool:
        """Return whether nothing has to be corrected: it has no tools, or a scan that only warns has found something."""
        return self.error_type == NO_TOOLS or (self.error_type == "SecurityError" and self.in_effect == "current")
