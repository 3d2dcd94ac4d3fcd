"""Reads bodies of HTTP and logs, works on much data with bounds, and gives out chance."""
