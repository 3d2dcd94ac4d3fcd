"""Shows a fleet to its operator: status, modules, audit."""
