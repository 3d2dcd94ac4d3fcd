"""Has people approve and reject calls over HTTP."""
