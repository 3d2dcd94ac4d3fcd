"""Remembers work that was started, so that it is done once, however often and in however many processes it is asked for."""
