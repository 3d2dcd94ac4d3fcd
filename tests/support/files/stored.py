"""Which stores and databases a pipeline is tried with, and what its store and its table of loose contents really hold."""

import pytest
from obstore.store import LocalStore, S3Store
from sqlalchemy import select

from modules.files import FilePipeline
from modules.files.database import LOOSE

PAIRS = pytest.mark.parametrize(
    ("place", "database"),
    [
        ("folder", "sqlite"),
        ("s3", "postgresql"),
        pytest.param("folder", "postgresql", marks=pytest.mark.slow),
        pytest.param("s3", "sqlite", marks=pytest.mark.slow),
    ],
    indirect=True,
)
"""Each store and each database once, and every pair of them among the longer proofs."""


async def stored_keys(files: FilePipeline) -> set[str]:
    """All contents in the store."""
    store: LocalStore | S3Store = await files.store._store()
    return {str(item["path"]) async for batch in store.list("content") for item in batch}


def loose_keys(files: FilePipeline) -> set[str]:
    """All contents that are on their way in or out."""
    with files.records._database.reading() as connection:
        return set(connection.execute(select(LOOSE.c.key)).scalars())
