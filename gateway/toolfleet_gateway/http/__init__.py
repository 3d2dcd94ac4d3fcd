"""Answers HTTP: routes and their document, problems, streams, health, and one uvicorn server."""
