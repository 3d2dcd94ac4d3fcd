"""Reads bodies of HTTP and logs, and works on much data, with bounds."""
