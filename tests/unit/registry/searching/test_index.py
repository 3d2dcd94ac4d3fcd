"""The index of words: what nobody closes is closed when nobody has it any more."""

import gc
import sqlite3

import pytest

from toolfleet_registry.searching.index import SearchDocument, TextIndex


def test_an_index_that_nobody_has_is_closed() -> None:
    """Also one that stands in a circle of references, as a catalog's does; from Python 3.13 an open one is warned of."""
    index = TextIndex([(SearchDocument("owls.find", (), "Find an owl.", {}), 1)])
    assert index.find("owl", may=lambda _: True) == [1]
    database = index._index
    index.itself = index  # type: ignore[attr-defined]
    del index
    gc.collect()

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")
