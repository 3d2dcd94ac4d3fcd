"""Reads HTTP and logs, and works on much data, with bounds."""
