"""Shows the tools that a caller may use, in the forms that clients and model providers take."""
