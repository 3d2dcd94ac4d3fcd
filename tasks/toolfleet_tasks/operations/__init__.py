"""Shows a fleet to its operator, in pages and in metrics, and changes it for them with a line in the audit."""
