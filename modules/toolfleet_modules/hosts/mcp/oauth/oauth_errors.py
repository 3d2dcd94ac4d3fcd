"""Names why a request to a server with OAuth was not sent, or was turned away. None of them did anything."""


class AuthorizationRefused(Exception):
    """There is no token for it, and there will be none until a person acts.

    The message says why, and shows no credential.
    """


class LoginNeeded(AuthorizationRefused):
    """A person has to log in, at first or again. The message says how."""


class AuthorizationAway(Exception):
    """There is no token for it now: the authorization server does not answer, or another process is renewing it.

    The message says which.
    """
