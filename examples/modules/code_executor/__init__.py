"""The module `code_executor`: runs programs in Python and of the shell in a sandbox."""
