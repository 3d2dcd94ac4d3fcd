"""Does over HTTP what operators do at the command line."""
