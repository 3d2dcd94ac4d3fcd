"""What a process of the simulation's pool does: only there time is virtual."""

from simulation.plan import Plan, Verdict


def play_here(plan: Plan) -> tuple[int, Verdict]:
    """Play a plan with this process's own Redis. Returns its seed, too."""
    import bed.replaced  # noqa: F401, PLC0415 - it puts virtual time into the process, before all that knows the time
    from simulation.scene import own_redis, play  # noqa: PLC0415 - as above

    redis, folder = own_redis()
    return plan.seed, play(plan, redis, folder / "run")
