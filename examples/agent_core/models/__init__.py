"""The models of the core: what one is, one behind an HTTP service, and one that follows a script."""
