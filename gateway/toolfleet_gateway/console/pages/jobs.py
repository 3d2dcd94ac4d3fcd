"""Shows the jobs of all users, and ends them."""

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit

_ONE = "/jobs/{job_id}"
_MOST = 200  # those that are due next: to find others, filter by user or workflow


def job_pages() -> list[ConsolePage]:
    """The pages."""
    return [
        ConsolePage("GET", "/jobs", _listed),
        ConsolePage("POST", "/jobs", _many_cancelled, "operator"),
        ConsolePage("GET", _ONE, _shown),
        ConsolePage("POST", _ONE, _cancelled, "operator"),
    ]


async def _listed(visit: Visit) -> Outcome:
    wanted = visit.query.chosen("user_id", "workflow_id")
    ended = visit.query.get("ended") == "true"
    found = await visit.ask("listAllJobs", RouteQuestion(query={**wanted, "ended": ended, "limit": _MOST}))
    values = {"jobs": found["jobs"], "wanted": wanted, "ended": ended, "is_cut": found["count"] == _MOST}
    return Shown("jobs", "Jobs", values)


async def _many_cancelled(visit: Visit) -> Outcome:
    wanted = visit.form.chosen("user_id", "workflow_id")
    found = await visit.ask("cancelJobsOfUser", RouteQuestion(query=wanted))
    return Done(f"Ended {found['cancelled']} jobs.", "/jobs")


async def _shown(visit: Visit) -> Outcome:
    question = RouteQuestion({"job_id": visit.path["job_id"]})
    job = await visit.ask("getAnyJob", question)
    wakeups = (await visit.ask("listWakeupsOfJob", question))["wakeups"]
    return Shown("job", "Job", {"job": job, "wakeups": wakeups[::-1]})


async def _cancelled(visit: Visit) -> Outcome:
    job = await visit.ask("cancelAnyJob", RouteQuestion({"job_id": visit.path["job_id"]}))
    return Done(f"The job is {job['state']}.", f"/jobs/{job['job_id']}")
