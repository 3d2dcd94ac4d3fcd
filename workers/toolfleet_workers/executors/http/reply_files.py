"""Takes the files beside a module's result if each of them can be given to a model, and otherwise leaves them out, with a warning."""

from binascii import a2b_base64

from pydantic import TypeAdapter, ValidationError

from toolfleet_registry.contracts import PublishedCall, ResultFile
from toolfleet_registry.contracts.result_files import MOST_FILES
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_FILES = TypeAdapter(tuple[ResultFile, ...])


def files_of(call: PublishedCall, sent: object) -> tuple[ResultFile, ...]:
    """What a reply has as `files`. Other modules may mean something else by that: what cannot be ours is none.

    The call has succeeded all the same, and its result says in words which files there were.
    """
    try:
        files = _FILES.validate_python(sent)
        for file in files:
            a2b_base64(file.data, strict_mode=True)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where, why = ".".join(map(str, fault["loc"]))[:_SHOWN], fault["msg"]
        log.warning("module_files_ignored", call_id=call.call_id, tool=call.tool_name, error=f"{where}: {why}")
    except ValueError as exc:
        log.warning("module_files_ignored", call_id=call.call_id, tool=call.tool_name, error=str(exc))
    else:
        if len(files) <= MOST_FILES:
            return files
        error = f"there are {len(files)}; at most {MOST_FILES} are taken"
        log.warning("module_files_ignored", call_id=call.call_id, tool=call.tool_name, error=error)
    return ()


_SHOWN = 80  # characters of a place, which may have been made up
