"""Runs blocking code beside an event loop, and sees to cancellation, endings and forks."""
