"""Keeps a process's clock in step with Redis's."""
