"""Keeps who is signed in: in a sealed cookie, so that any gateway takes it, until they sign out."""
