"""How much a user may have remembered."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class KnowledgeSettings(BaseSettings):
    """`KNOWLEDGE_…` in the environment. Where notes are kept, the settings of users' files say."""

    model_config = SettingsConfigDict(env_prefix="KNOWLEDGE_", frozen=True, env_ignore_empty=True)

    max_notes: int = Field(default=1000, gt=0)
    """Of one user."""
    max_chars: int = Field(default=20_000, gt=0, le=200_000)
    """Of one note's text. PostgreSQL indexes no more than a megabyte of words."""
