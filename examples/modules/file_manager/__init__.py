"""The module `file_manager`: each user's own files."""
