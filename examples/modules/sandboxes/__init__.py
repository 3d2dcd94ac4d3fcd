"""Sandboxes of Linux namespaces, for whatever a module runs that is not its own. Imports the standard library only."""
