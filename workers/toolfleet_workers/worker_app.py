"""Composes the worker, at its root. Importing it does nothing yet."""

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.names import ARTIFACTS, LOCAL, PROGRAMS, SCHEDULER
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import Tracing
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.messages.signing import caller_tokens
from toolfleet_tasks.queues import queue_of
from toolfleet_tasks.tracing import process_tracing
from toolfleet_workers.execution import execute
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor
from toolfleet_workers.executors.module_client import TracedClient
from toolfleet_workers.middleware import (
    ApprovalCheck,
    NoArtifacts,
    OwnMiddleware,
    PermissionCheck,
    PersonalDataGuard,
    ProfileCheck,
    ResultCheck,
    ShownArguments,
    ToolSpan,
)
from toolfleet_workers.pool import bootsteps
from toolfleet_workers.pool.consumption import ServedModules
from toolfleet_workers.runner import CallRunner, Case, Executor, Middleware, RoutedExecutor
from toolfleet_workers.tool_cache import ToolCache

if TYPE_CHECKING:
    from toolfleet_tasks.job_poller import WorkerJobs

log = get_logger(__name__)


def make_worker_app(settings: Settings) -> FleetApp:
    """Return an app that can run calls: of the settings' lane, against their modules."""
    app = make_app(settings, lane=settings.lane)
    app.tracing = tracing = process_tracing(settings, "toolfleet-worker")
    own_classes = OwnClasses(settings, runs_in="worker")
    own_classes.check(settings)
    profiles = KnownProfiles(settings, own=own_classes)
    profiles.guards.check(settings)
    tools = ToolCache(settings, app.modules, profiles=profiles)
    own = _own_executors(settings, tools)
    profile = ProfileCheck(tools, profiles, settings.default_guest_modules)
    permission = PermissionCheck(tools, settings.default_guest_modules, settings.open_modules)
    guard = PersonalDataGuard(tools, profiles)
    puts: Middleware = NoArtifacts()
    if settings.artifact_store is not None:
        own[ARTIFACTS], puts = _artifact_parts(app, tools, profile, permission, guard)
    if settings.programs:
        own |= _program_executor(app)
    http = HttpExecutor(
        settings.module_services,
        client=HttpClient() if tracing is None else TracedClient(HttpClient(), tracing),
        max_reply_bytes=settings.max_reply_bytes,
        headers=app.modules.headers,
        caller_token=None if settings.signing_key is None else caller_tokens(settings.signing_key),
    )
    executor = RoutedExecutor(own, others=http) if own else http
    says = [LOCAL] if settings.local_tools else []
    app.served_modules = served = ServedModules(settings, app.modules, http, tools, own=says)
    approval = ApprovalCheck(tools, profile.rules_for)
    operators = OwnMiddleware(tools, profiles, own_classes)
    spans, check = _tool_spans(tracing, ResultCheck(tools))
    runner = CallRunner(
        executor,
        middleware=[*spans, profile, permission, approval, puts, operators, guard, check],
        ask_status=http.statuses.status,
        checks=2,  # the last two
        screened=guard.screened,
        definitions=tools,
        wait_for=permission.wait_for,
        rules_for=profile.rules_for,
        replica_for=http.replica_for,
        closing=[tools.aclose, served.aclose],
    )
    execute.install(app, runner)
    jobs = _LazyJobs(app)
    app.resume_jobs, app.evaluate_job = jobs.resume, jobs.evaluate
    bootsteps.install(app)
    return app


def _tool_spans(tracing: Tracing | None, check: Middleware) -> tuple[list[Middleware], Middleware]:
    """Return the middleware that goes around all other, and the last one."""
    if tracing is None:
        return [], check
    return [ToolSpan(tracing)], ShownArguments(check) if tracing.has_contents else check


def _own_executors(settings: Settings, tools: ToolCache) -> dict[str, Executor]:
    """Return the executors of modules that have no address. Raises `SettingsError` for local tools that are required and cannot be had."""
    own = dict[str, Executor]()
    # Loaded where they are wanted: hardly any worker has them, and every worker shall be up soon.
    if settings.local_tools:
        own[LOCAL] = _local_executor(settings, settings.local_tools, tools)
    if settings.scheduler:
        own[SCHEDULER] = _scheduler_executor(settings)
    return own


def _local_executor(settings: Settings, path: str, tools: ToolCache) -> Executor:
    from toolfleet_registry.local.local_tools import LocalSource, load_local_tools  # hardly any worker has them
    from toolfleet_workers.executors.local import LocalExecutor

    error = load_local_tools(settings).error
    if error is not None and settings.local_tools_required:
        raise SettingsError(error)
    if error is not None:
        log.error("local_tools_not_imported", error=error)
    return LocalExecutor(
        LocalSource(path), max_result_bytes=settings.max_reply_bytes, threads=settings.local_threads, approvals=tools
    )


def _scheduler_executor(settings: Settings) -> Executor:
    from toolfleet_tasks.client.session import worker_job_service
    from toolfleet_tasks.jobs.state_machine import LONGEST_SECONDS
    from toolfleet_workers.executors.scheduler import SchedulerExecutor

    return SchedulerExecutor(lambda: worker_job_service(settings), longest_seconds=LONGEST_SECONDS)


def _program_executor(app: FleetApp) -> dict[str, Executor]:
    """Have the app go on with programs. Returns their executor; nothing where no program can be run: then others take their queue."""
    if find_spec("pydantic_monty") is None:
        name = queue_of(PROGRAMS)
        app.conf.task_queues = [queue for queue in app.conf.task_queues if queue.name != name]
        log.warning("programs_not_served", hint="install the extra `code`")
        return {}
    from toolfleet_workers.execution.programs import ProgramEngine, ProgramExecutor

    engine = ProgramEngine(app)
    app.resume_programs = engine.resume
    return {PROGRAMS: ProgramExecutor(app.settings, engine)}


def _artifact_parts(
    app: FleetApp, tools: ToolCache, profile: ProfileCheck, permission: PermissionCheck, guard: PersonalDataGuard
) -> tuple[Executor, Middleware]:
    """Have the app keep large results. Returns the executor of the tools that read them, and what puts them into arguments.

    Raises `SettingsError` if the store cannot be used here.
    """
    from toolfleet_tasks.artifacts import Artifacts
    from toolfleet_workers.executors.artifacts import ArtifactArguments, ArtifactExecutor, CallArtifacts

    def may_use(call: PublishedCall, tool_name: str) -> bool:
        tool = tools.find(tool_name)
        if tool is None:
            return False
        case = Case(call.caller, tool, profile.rules_for(call))
        return profile.decide(case) != "refuse" and permission.decide(case) != "refuse"

    artifacts = Artifacts(app.settings)
    _ = artifacts.store
    app.keep_artifacts = artifacts.keep
    reader = CallArtifacts(artifacts, may_use=may_use, hide=guard.hide)
    return ArtifactExecutor(reader), ArtifactArguments(reader, tools)


class _LazyJobs:
    """`WorkerJobs`, loaded with the first job or beat's first tick: with the agent's session and the HTTP client, which a worker starts sooner without."""

    def __init__(self, app: FleetApp) -> None:
        self._app = app
        self._jobs: WorkerJobs | None = None

    async def resume(self, *, seconds: float) -> None:
        """Implements `FleetApp.resume_jobs`."""
        await (await self._loaded()).resume(seconds=seconds)

    async def evaluate(self, job_id: str, *, seconds: float) -> None:
        """Implements `FleetApp.evaluate_job`."""
        await (await self._loaded()).evaluate(job_id, seconds=seconds)

    async def _loaded(self) -> "WorkerJobs":
        if self._jobs is None:
            kind = await asyncio.to_thread(_load_jobs)  # a tenth of a second, for which no call shall wait
            self._jobs = self._jobs or kind(self._app)
        return self._jobs


def _load_jobs() -> "type[WorkerJobs]":
    from toolfleet_tasks.job_poller import WorkerJobs

    return WorkerJobs
