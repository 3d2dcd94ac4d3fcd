"""What a pipeline's store and its table of loose contents really hold."""

from obstore.store import LocalStore, S3Store
from sqlalchemy import select

from modules.files import FilePipeline
from modules.files.database import LOOSE


async def stored_keys(files: FilePipeline) -> set[str]:
    """All contents in the store."""
    store: LocalStore | S3Store = await files.store._store()
    return {str(item["path"]) async for batch in store.list("content") for item in batch}


def loose_keys(files: FilePipeline) -> set[str]:
    """All contents that are on their way in or out."""
    with files.records._database.reading() as connection:
        return set(connection.execute(select(LOOSE.c.key)).scalars())
