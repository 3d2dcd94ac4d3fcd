"""A response's header fields."""

import aiohttp


def read_header(response: aiohttp.ClientResponse, name: str) -> str | None:
    """The field's value; those of a field that is there several times as one list, which is what the standard says."""
    values = response.headers.getall(name, None)
    return None if values is None else ", ".join(values)
