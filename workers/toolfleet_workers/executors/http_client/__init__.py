"""Keeps connections to modules: an HTTP/1.1 client behind one `post`."""
