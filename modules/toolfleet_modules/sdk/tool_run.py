"""Runs a tool's function: its result or exception becomes a reply."""

import asyncio
import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolfleet_modules.calls.reply import Reply, question_reply
from toolfleet_modules.calls.work import RunMeans, ServedRun, TaskExit
from toolfleet_modules.sdk.tool import Tool
from toolfleet_registry.contracts.attempts import UNEXPLAINED
from toolfleet_registry.contracts.call_context import run_for
from toolfleet_registry.functions.failures import Accepted, InputRequired, ModuleBusy, ToolError
from toolfleet_registry.functions.threads import NotBegun

_log = logging.getLogger("toolfleet.sdk")  # not structlog: its tracebacks may show variables, and those are arguments


@dataclass(frozen=True, slots=True)
class ToolRun(ServedRun[Tool]):
    """One run of a tool, with its function's arguments."""

    arguments: Mapping[str, Any]
    means: RunMeans

    @property
    def reruns_failures(self) -> bool:
        """Whether a call that failed runs again when it is repeated."""
        return self.tool.reruns_failures

    async def run(self) -> Reply:
        """Run it: an exception becomes a reply, except `ModuleBusy`, `NotBegun`, and being cancelled."""
        tool = self.tool
        given = dict(self.arguments)
        if self.context._arguments is not None:
            run_for(self.context)
        if tool.signature.context:
            given[tool.signature.context] = self.context
        may_begin = self.context._may_begin
        if not tool.is_plain and not may_begin():
            raise NotBegun
        try:
            result = await (
                self.means.threads.run(tool.function, given, may_begin) if tool.is_plain else tool.function(**given)
            )
            if inspect.isawaitable(result):  # a plain function that makes a coroutine, as a decorated one may
                result = await result
        except (ToolError, Accepted, InputRequired) as exc:
            return self._error_reply(exc) if isinstance(exc, ToolError) else self._going_on(exc)
        except (ModuleBusy, NotBegun, asyncio.CancelledError, GeneratorExit):
            raise
        except TaskExit as exc:
            return self._broken(exc.__cause__ or exc)
        except BaseExceptionGroup as exc:  # of a task group in the tool
            return self._broken_together(exc)
        except BaseException as exc:  # noqa: BLE001 - the edge: it becomes a reply, and the log has it; SystemExit would end us
            return self._broken(exc)
        finally:
            self.context._arguments = None
        return self._result_reply(result)

    def _result_reply(self, result: Any) -> Reply:
        if isinstance(result, Accepted | InputRequired):
            return self._going_on(result)
        return Reply.success(self.name, result, most_bytes=self.means.most_bytes)

    def _going_on(self, how: Accepted | InputRequired) -> Reply:
        return self._acceptance(how) if isinstance(how, Accepted) else question_reply(self.name, self.context, how)

    def _acceptance(self, accepted: Accepted) -> Reply:
        if self.means.accepts:
            return Reply.accepted(self.name, accepted.handle, poll_after_seconds=accepted.poll_after_seconds)
        _log.error("%s continues by itself, and its module has no status: its end cannot be known", self.name)
        return Reply.failure(
            self.name, f"{self.name} has started, and its module cannot report its end.", effect_state="unknown"
        )

    def _error_reply(self, error: ToolError) -> Reply:
        retryable = error.retryable and self.tool.definition.effect != "once"
        text = str(error) or f"{self.name} failed."
        return Reply.failure(self.name, text, effect_state=error.effect_state, retryable=retryable)

    def _broken_together(self, group: BaseExceptionGroup[BaseException]) -> Reply:
        """Return the reply of a group of exceptions: the message of a `ToolError` in it, else that of the group."""
        tool_error = next((each for each in _leaves(group) if isinstance(each, ToolError)), None)
        if tool_error is None:
            return self._broken(group)
        # Others of the group may have done something: `none` is not for one of them to say.
        return Reply.failure(self.name, str(tool_error))

    def _broken(self, exc: BaseException) -> Reply:
        """Return the reply of an exception.

        Raises `asyncio.CancelledError` for a tool that was stopped: its exception is a consequence, and no answer.
        """
        _log.error("%s failed", self.name, exc_info=exc)
        if self.context._cancelled:
            raise asyncio.CancelledError
        if self.means.shows_exceptions and (text := _text_of(exc)):
            return Reply.failure(self.name, f"{self.name} failed: {text}")
        # The exception's text may hold paths or data of this machine; it is in the log only.
        return Reply.failure(
            self.name, f"{self.name} failed inside the module ({type(exc).__name__}); its {UNEXPLAINED}"
        )


def _text_of(exc: BaseException) -> str:
    """Return the exception's type and text, of a group the first one's; empty for one without a text, or with a text that fails."""
    first = next(_leaves(exc)) if isinstance(exc, BaseExceptionGroup) else exc
    try:
        text = str(first).strip()
    except Exception:  # noqa: BLE001 - an author's
        return ""
    return text and f"{type(first).__name__}: {text}"


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
