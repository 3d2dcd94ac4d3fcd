"""Takes the requests of outside systems that end jobs."""
