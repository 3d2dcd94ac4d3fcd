"""Keeps agents' profiles in the registry's store, with their versions, and brings them to the processes that apply them."""
