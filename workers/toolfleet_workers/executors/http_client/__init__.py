"""Posts requests to modules over kept connections: an HTTP/1.1 client behind one `post`."""
