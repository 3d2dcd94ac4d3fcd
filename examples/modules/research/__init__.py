"""The module `research`: reads web pages, and searches this project's documentation."""
