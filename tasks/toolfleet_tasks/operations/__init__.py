"""Shows a fleet to its operator, and changes it for them, with a line in the audit."""
