"""The processes of a run, each a program of its own."""
