"""The module `claude_code`: runs a coding agent in a workspace, in the background."""
