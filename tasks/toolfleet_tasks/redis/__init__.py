"""Keeps pipelined connections to Redis: one for each loop and server, shared by everybody on it."""
