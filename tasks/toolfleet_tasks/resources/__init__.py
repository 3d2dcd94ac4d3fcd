"""Declares the resources of operators: each file one, with all that can be asked of it and changed."""
