"""Counts what a process does, under the names of one table, and writes it as Prometheus reads it."""
