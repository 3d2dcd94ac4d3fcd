"""Runs tools where they are: at a module over HTTP, in this process, or in the scheduler."""
