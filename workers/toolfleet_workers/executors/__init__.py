"""Where a call goes: one way to reach a tool a file."""
