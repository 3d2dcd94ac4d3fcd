"""Gives requests to one server their token, and gets another where that one is over, refused, or not enough."""

import asyncio
from collections import deque

from toolfleet_modules.hosts.mcp.oauth.authorization_record import AuthorizationRecord
from toolfleet_modules.hosts.mcp.oauth.challenge import Challenge
from toolfleet_modules.hosts.mcp.oauth.flow import Flow
from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationAway, AuthorizationRefused, LoginNeeded
from toolfleet_modules.hosts.mcp.oauth.oauth_options import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth.person_port import PersonPort
from toolfleet_modules.hosts.mcp.oauth.record_file import RecordFile
from toolfleet_modules.hosts.serving.secrets import Secrets

_SECONDS = 120.0  # for a renewal, with the wait for another process; a person has a time of their own
_HIDDEN_NAME = "oauth"
_END_SECONDS = 5.0  # for a renewal when the host ends
_REST_SECONDS = 5.0  # after a flow that was refused, before there is another
_MOST_GRANTS, _GRANT_SECONDS = 2, 10.0  # so many tokens within so long are in vain: the server refuses them


class Authorizer:
    """The tokens for one server, which processes may share by their file.

    They are hidden by `secrets`. Without `person` no login is possible: a request that needs one is refused with
    `LoginNeeded`. `is_fresh`: the stored state is ignored.
    """

    def __init__(
        self,
        options: OAuthOptions,
        *,
        secrets: Secrets | None = None,
        person: PersonPort | None = None,
        is_fresh: bool = False,
    ) -> None:
        self.options = options
        self._secrets = secrets
        self._person, self._is_fresh = person, is_fresh
        self._file = RecordFile(options.file, options.identity)
        self._record: AuthorizationRecord | None = None
        self._turn = asyncio.Lock()
        self._renewing = set[asyncio.Task[str]]()
        self._refused: tuple[float, AuthorizationRefused] | None = None
        self._grants = deque[float](maxlen=_MOST_GRANTS)

    async def token(self) -> str | None:
        """The token to send; `None` if there is none. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        record = self._record
        if record is None or record.token is None:
            record = self._known(await self._kept())
        if record.is_over and (record.can_refresh or not self.options.has_person):
            return await self.renewed(record.token, Challenge())
        return record.token

    async def renewed(self, token: str | None, challenge: Challenge, *, may_refresh: bool = True) -> str:
        """Return another token than the one that a server has answered with this, or that has expired.

        `may_refresh`: a refresh token is used, if there is one. Raises `AuthorizationRefused` and `AuthorizationAway`.
        """
        # A renewal continues if its waiters leave: a refresh token counts once, and what came for it must be kept.
        task = asyncio.ensure_future(self._renew(token, challenge, may_refresh=may_refresh))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiters see it
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """End what goes on: a login at once, a renewal when it has its answer."""
        if self._person is None and self._renewing:
            await asyncio.wait(self._renewing, timeout=_END_SECONDS)
        for task in self._renewing:
            task.cancel()
        await asyncio.gather(*self._renewing, return_exceptions=True)

    async def _renew(self, token: str | None, challenge: Challenge, *, may_refresh: bool) -> str:
        try:
            async with asyncio.timeout(_SECONDS if self._person is None else None), self._turn:
                if self._person is not None:  # who may take minutes: the file is locked only when it is written
                    return await self._next(token, challenge, may_refresh=may_refresh)
                async with self._file.locked():
                    return await self._next(token, challenge, may_refresh=may_refresh)
        except TimeoutError:
            raise AuthorizationAway(f"its tokens were not renewed within {_SECONDS:g} s") from None

    async def _next(self, token: str | None, challenge: Challenge, *, may_refresh: bool) -> str:
        """Return another token, of this process or of another one that was faster."""
        record = await self._kept()
        if record.token is not None and record.token != token and not record.is_over:
            return self._known(record).token or ""
        if may_refresh and not challenge.is_step_up and record.can_refresh and self.options.has_person:
            changed = await Flow(self.options, record, None).refreshed()
            if changed is not None:
                return await self._keep(changed)
            record = record.model_copy(update={"tokens": None, "lasts_until": None})
            await self._keep_record(record)  # so that a dead refresh token is not tried again
        return await self._keep(await self._authorized(record, challenge))

    async def _authorized(self, record: AuthorizationRecord, challenge: Challenge) -> AuthorizationRecord:
        """The record with tokens that the server asks for. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        now = asyncio.get_running_loop().time()
        if self._refused is not None and now < self._refused[0]:
            raise self._refused[1]
        is_vain = len(self._grants) == _MOST_GRANTS and now < self._grants[0] + _GRANT_SECONDS
        if is_vain and not challenge.is_step_up:
            raise AuthorizationRefused("its server refuses the tokens that its authorization server gives")
        try:
            await self._check(record, challenge)
            changed = await Flow(self.options, record, self._person).authorized(challenge)
        except AuthorizationRefused as exc:
            self._refused = asyncio.get_running_loop().time() + _REST_SECONDS, exc
            raise
        self._refused = None
        self._grants.append(asyncio.get_running_loop().time())
        return changed

    async def _check(self, record: AuthorizationRecord, challenge: Challenge) -> None:
        """Raise `AuthorizationRefused` if asking is useless, and `LoginNeeded` if there is no person to ask."""
        if challenge.is_step_up and record.has_asked_for(challenge.scope):
            wanted = f" ({challenge.scope})" if challenge.scope else ""
            raise AuthorizationRefused(f"its server wants more rights{wanted} than its authorization server gives")
        if not self.options.has_person or self._person is not None:
            return
        if challenge.is_step_up:
            wants = challenge.with_scopes(record.wanted_scope).scope
            await self._keep_record(record.model_copy(update={"wanted_scope": wants}))
            raise LoginNeeded(f"it needs a login for {challenge.scope}: `{self.options.login}`")
        raise LoginNeeded(f"it needs a login: `{self.options.login}`")

    async def _kept(self) -> AuthorizationRecord:
        record = await self._file.read()
        if self._is_fresh and self._record is None:
            return record.model_copy(update={"tokens": None, "lasts_until": None, "client": None, "server": None})
        return self._record if self._is_fresh and self._record is not None else record

    async def _keep(self, record: AuthorizationRecord) -> str:
        await self._keep_record(record)
        assert record.token is not None  # noqa: S101 - a flow has ended well
        return record.token

    async def _keep_record(self, record: AuthorizationRecord) -> None:
        if self._person is None:
            await self._file.write(record)
        else:
            async with self._file.locked():
                await self._file.write(record)
        self._known(record)

    def _known(self, record: AuthorizationRecord) -> AuthorizationRecord:
        """The record, which counts from now on."""
        self._record = record
        if self._secrets is not None and record.tokens is not None:
            for value in (record.tokens.access_token, record.tokens.refresh_token):
                self._secrets.hide_also(_HIDDEN_NAME, value or "")
        return record
