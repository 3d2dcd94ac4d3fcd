"""Finds the page of a path."""

import re
from collections.abc import Mapping, Sequence

from starlette.routing import compile_path

from toolfleet_gateway.console.page import ConsolePage
from toolfleet_gateway.http.problems import Problem, not_found


class PagePaths:
    """The pages by their paths, in the order in which these are tried."""

    def __init__(self, pages: Sequence[ConsolePage]) -> None:
        self.pages = tuple(pages)
        self._patterns: list[tuple[re.Pattern[str], ConsolePage]] = [
            (compile_path(page.path)[0], page) for page in pages
        ]

    def find(self, method: str, path: str) -> tuple[ConsolePage, Mapping[str, str]]:
        """The page, and the parts of the path that it names. Raises `Problem`: 404, or 405."""
        found = [(page, match.groupdict()) for pattern, page in self._patterns if (match := pattern.match(path))]
        if not found:
            raise not_found("The console has no such page.")
        for page, parts in found:
            if page.method == method:
                return page, parts
        allowed = sorted({page.method for page, _ in found})
        raise Problem(405, "invalid_request", "This page is not asked so.", headers={"allow": ", ".join(allowed)})
