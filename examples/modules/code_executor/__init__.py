"""The module `code_executor`: runs Python under limits."""
