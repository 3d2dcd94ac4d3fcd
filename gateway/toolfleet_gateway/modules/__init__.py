"""Shows the modules that a caller reaches, and has them asked for what they offer."""
