"""Serves an app by uvicorn, within limits of its connections."""
