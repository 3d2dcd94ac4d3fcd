"""Asks a gateway for the audit: its latest lines, and those that come."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolfleet_cli.remote.gateway import Gateway
from toolfleet_registry.errors import FleetUnavailable

if TYPE_CHECKING:
    from toolfleet_tasks.operations.audit_reader import Wanted

_PATH = "/operations/audit"
_MOST = 1_000  # lines of one answer
_PAUSE_SECONDS = 1.0  # between two questions for what has come


@dataclass(slots=True)
class GatewayAudit:
    """The audit, as a gateway has it, of the lines that are wanted."""

    gateway: Gateway
    wanted: "Wanted"
    _last: str = field(default="", init=False)

    def last(self, count: int) -> list[dict[str, Any]]:
        """Return at most the `count` latest lines, oldest first. `follow` continues after the latest of all."""
        found, cursor = list[dict[str, Any]](), None
        while True:
            page = self._ask(limit=max(1, min(count - len(found), _MOST)), cursor=cursor)
            self._last = self._last or page.get("last", "")
            found += page["lines"]
            cursor = page.get("next")
            if cursor is None or len(found) >= count:
                return found[:count][::-1]

    def follow(self, on_away: Callable[[FleetUnavailable | None], object]) -> Iterator[dict[str, Any]]:
        """Yield lines as they come, for ever; `on_away` is called when the gateway does not answer, and with `None` when it does again."""
        is_away = False
        while True:
            try:
                page = self._ask(limit=_MOST, after=self._last)
            except FleetUnavailable as exc:
                if not is_away:
                    on_away(exc)
                is_away = True
                time.sleep(_PAUSE_SECONDS)
                continue
            if is_away:
                on_away(None)
            is_away, has_more, self._last = False, page["last"] != self._last, page["last"]
            yield from page["lines"]
            if not has_more:
                time.sleep(_PAUSE_SECONDS)

    def _ask(self, **query: Any) -> Any:
        wanted = self.wanted
        changes = "true" if wanted.only_changes else None
        return self.gateway.get(
            _PATH, {"tool": wanted.tool, "user": wanted.user, "outcome": wanted.outcome, "changes": changes, **query}
        )
