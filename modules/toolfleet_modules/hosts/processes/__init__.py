"""Runs tools of files in processes of their own, behind a fence: a host speaks with them over a socket."""
