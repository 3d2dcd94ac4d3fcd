"""HTTP without TLS, for clients of this machine: reading its certificates for each would take longer than a call."""

import ssl

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody: `verify=PLAIN`."""
