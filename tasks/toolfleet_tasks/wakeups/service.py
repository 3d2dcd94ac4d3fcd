"""What an agent has to do with the news of jobs' ends, over one loop's connections."""

from collections.abc import Callable

from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis.connection import Line
from toolfleet_tasks.wakeups.core_watch import CoreWatch
from toolfleet_tasks.wakeups.stream import Reader


class WakeDesk:
    """`connect` makes a line of that name, which is not started yet."""

    def __init__(self, line: Line, connect: Callable[[str, str], Line], settings: Settings) -> None:
        self._seal = seal_of(settings, purpose="job")
        self._line = line
        self._connect = connect
        self._settings = settings
        self._lines: list[Line] = []
        self._watch = CoreWatch(line, settings.keys)

    def reader(self, conversation_id: str, consumer: str | None) -> Reader:
        """A reader of the conversation's news; many may read beside each other."""
        return Reader(
            self._settings.keys.completions(conversation_id),
            conversation_id,
            seal=self._seal,
            line=self._line,
            connect=self._own_line,
            look_for_core=self._watch.look,
            consumer=consumer,
        )

    async def aclose(self) -> None:
        """End all readers."""
        for line in self._lines:
            await line.aclose()

    def _own_line(self) -> Line:
        self._lines = [line for line in self._lines if not line.is_closed]
        line = self._connect(str(self._settings.redis_url), "completions")
        self._lines.append(line)
        line.start()
        return line
