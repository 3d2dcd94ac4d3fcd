"""Serves a module with uvicorn, with the options of its command line. An unformatted log line begins with its level."""

import logging

from uvicorn.main import main

if __name__ == "__main__":
    # Where a module has not set up its logging, Python prints warnings bare: they could not be told from other output.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s: %(name)s: %(message)s"))
    main()
