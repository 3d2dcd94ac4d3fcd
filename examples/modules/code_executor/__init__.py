"""The module `code_executor`: runs Python programs in a sandbox."""
