"""Sets up Celery's logging and its remote control for the fleet's app only.

Remote control takes allowed commands only: questions, and the fleet's own orders to drop a call. Every client that reaches the broker
can send such commands: the others are refused, unless `TOOLFLEET_REMOTE_CONTROL` names them.
"""

from typing import Any

from celery.app.control import Control
from celery.app.log import Logging
from kombu.exceptions import OperationalError
from kombu.pidbox import Mailbox, Node

from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.control.logs import configure_logs
from toolfleet_tasks.messages.envelope import is_signed_revocation

# What `inspect` asks, with Celery's older names. Not `conf`, nor `report`, which quotes it; not `hello`, which revokes;
# nor what writes files or stops the loop for as long as it takes: `objgraph`, `memdump`, `memsample`.
_QUESTIONS = frozenset(
    {
        "ping",
        "active",
        "active_queues",
        "clock",
        "dump_active",
        "dump_reserved",
        "dump_revoked",
        "dump_schedule",
        "dump_tasks",
        "query_task",
        "registered",
        "reserved",
        "revoked",
        "scheduled",
        "stats",
    }
)
# Flower sends these at its start and every few seconds. Workers send events and heartbeats in any case.
_HARMLESS = frozenset({"enable_events", "heartbeat"})
_EXPECTED = frozenset({"conf"})  # Flower asks each worker. It is refused, as passwords are in it, and not logged
_SHOWN = 100  # characters of a refused command's name

log = get_logger(__name__)


class FleetNode(Node):  # type: ignore[misc, unused-ignore] # kombu is only partly typed
    """A worker's end of remote control, of a `FleetApp`. Fails closed."""

    refused = 0
    """How many orders were not obeyed."""

    def handle_message(self, body: Any, message: Any = None) -> Any:
        """Handle a message as kombu does; one that is no command is dropped."""
        if not isinstance(body, dict):
            return self._refuse(str(type(body)), "it is no order")
        try:
            return super().handle_message(body, message)  # type: ignore[no-untyped-call] # kombu is only partly typed
        except (OSError, OperationalError):
            raise
        except Exception as exc:  # noqa: BLE001 - any sender may have written it; Celery would open a new channel each time
            return self._refuse(str(body.get("method")), f"it is malformed, {type(exc).__name__}")

    def dispatch(
        self, method: Any, arguments: Any = None, reply_to: Any = None, ticket: Any = None, **kwargs: Any
    ) -> Any:
        """Dispatch an allowed command as kombu does; the sender of any other one, if it waits for a reply, is told."""
        state: Any = self.state
        fault = _fault(state.app.settings, method, arguments)
        if fault is None:
            taken = {name: value for name, value in (arguments or {}).items() if name != "signature"}
            return super().dispatch(method, taken, reply_to, ticket, **kwargs)  # type: ignore[no-untyped-call] # as above
        answer = self._refuse(str(method), fault)
        if isinstance(reply_to, dict):
            place = {"exchange": reply_to.get("exchange"), "routing_key": reply_to.get("routing_key")}
            self.reply({self.hostname: answer}, ticket=ticket, **place)  # type: ignore[no-untyped-call] # as above
        return answer

    def _refuse(self, method: str, fault: str) -> dict[str, str]:
        if method not in _EXPECTED:
            self.refused += 1
            log.error("remote_control_refused", command=method[:_SHOWN], reason=fault, so_far=self.refused)
        return {"error": f"Refused: {fault}."}


class FleetMailbox(Mailbox):
    """Makes such nodes."""

    node_cls = FleetNode


class FleetControl(Control):
    """Set by `control_cls` of the app."""

    Mailbox = FleetMailbox


def _fault(settings: Settings, method: Any, arguments: Any) -> str | None:
    """Return why a command is refused; `None` if it is allowed."""
    if not isinstance(method, str) or not isinstance(arguments or {}, dict):
        return "it is no order"
    if method in _QUESTIONS or method in _HARMLESS or method in settings.remote_control:
        return None
    if method != "revoke":
        return "TOOLFLEET_REMOTE_CONTROL does not name it"
    if settings.signing_key is None or is_signed_revocation(arguments or {}, settings):
        return None
    return "it is not signed by the fleet"


class FleetLogging(Logging):
    """The logging set-up of `celery worker` and `celery beat`.

    It does not use Celery's signal `setup_logging`: that is the process's, and would take its logs from a program's own
    Celery app.
    """

    def setup_logging_subsystem(self, *_: object, **__: Any) -> Any:
        """Configure the process's logs, once. Returns True: Celery must not do anything of its own."""
        if not self.already_setup:
            Logging._setup = True  # noqa: SLF001 - as Celery's own does
            configure_logs(self.app.settings)
        return True
