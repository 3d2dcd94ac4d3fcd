"""Runs the command as `python -m toolfleet_cli`, for processes that are started with this very Python."""

from toolfleet_cli import main

if __name__ == "__main__":
    main()
