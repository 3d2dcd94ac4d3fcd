"""What must hold after a run, of calls and of jobs."""
