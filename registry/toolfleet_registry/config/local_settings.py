"""Declares the settings for tools that are functions of our own and run in the workers; a part of `Settings`."""

from pydantic import Field
from pydantic_settings import BaseSettings


class LocalSettings(BaseSettings, defer_build=True):
    """What a worker imports and runs itself. An agent imports nothing: it reads what workers say of their tools."""

    local_tools: str | None = None
    """`package.module:name` of tools that are functions of our own and run in the workers, as module `local`."""
    local_tools_required: bool = False
    """Whether a worker ends that cannot import all of them. Others serve what there is, and say what is missing."""
    local_threads: int = Field(default=32, ge=1, le=1000)
    """How many of them that are no async functions run at once in a worker, each in a thread: who comes later waits within its call's time."""
