"""Begins, follows and cancels calls over REST."""
