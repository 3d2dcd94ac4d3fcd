"""Runs each call once, however often and in however many processes it is asked for."""
