"""The module `research`: searches the web, reads its pages, and searches this project's documentation."""
