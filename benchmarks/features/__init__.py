"""Measures what single features cost: the catalog, tool folders, jobs."""
