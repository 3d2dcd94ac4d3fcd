"""Passes on what a server asks in the middle of a call, in both eras of the protocol."""
