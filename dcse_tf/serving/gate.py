"""The outermost layer of the server: checks keys and bodies, and counts requests."""

import asyncio
import hmac
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dcse_tf.serving import metrics
from dcse_tf.serving.errors import Refusal, refuse

# Paths for monitoring, which need no key.
_OPEN = ("/health", "/metrics")
# Of a body that is too long, up to this many times `max_body` is read and discarded, because a
# client does not read the answer while it is still sending.
_DRAINED = 8
_CLIENT_GONE = 499


class _ClientGone(Exception):
    pass


class Gate:
    """Passes on requests with a valid key and a body within the limits, and cancels those whose
    client has disconnected.

    Args:
        app: the application that answers requests.
        routes: the paths that have their own counts; others are counted together.
        keys: the valid keys; if empty, no key is needed.
        max_body: longest body in bytes.
        timeout: seconds within which a body must arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Collection[str],
        keys: Collection[str],
        max_body: int,
        timeout: float,
    ):
        self._app = app
        self._routes = routes
        self._keys = [key.encode() for key in keys]
        self._max_body = max_body
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = _CLIENT_GONE

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        route = scope["path"] if scope["path"] in self._routes else "other"
        try:
            await self._pass(scope, receive, note)
        except _ClientGone:
            status = _CLIENT_GONE
        finally:
            metrics.REQUESTS.labels(route, status).inc()
            metrics.SECONDS.labels(route).observe(time.monotonic() - started)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            self._check_key(scope["path"], headers.get(b"authorization", b""))
            body = await self._read(receive, headers.get(b"content-length", b""))
        except Refusal as refusal:
            response = refuse(scope["path"], refusal.status, str(refusal), refusal.headers)
            await response(scope, receive, send)
            return
        # A body is read as JSON whatever its declared type: curl's --data declares a form.
        kept = [header for header in scope["headers"] if header[0] != b"content-type"]
        scope = {**scope, "headers": [*kept, (b"content-type", b"application/json")]}
        await self._answer(scope, body, receive, send)

    def _check_key(self, path: str, authorization: bytes) -> None:
        scheme, _, given = authorization.partition(b" ")
        known = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if self._keys and path not in _OPEN and (scheme.lower() != b"bearer" or not any(known)):
            raise Refusal(
                401,
                "Give a key of this server as the header `Authorization: Bearer KEY`.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _read(self, receive: Receive, declared: bytes) -> bytes:
        """Reads the body.

        Raises:
            Refusal: it is too long, or did not arrive in time.
            _ClientGone: the client disconnected before the body was complete.
        """
        too_long = Refusal(
            413,
            f"The request has more than {self._max_body:,} bytes; send fewer texts at a time.",
            {"Connection": "close"},
        )
        if declared.isdigit() and int(declared) > _DRAINED * self._max_body:
            raise too_long
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGone
                    size += len(message.get("body", b""))
                    if size <= self._max_body:
                        body += message.get("body", b"")
                    if size > _DRAINED * self._max_body or not message.get("more_body"):
                        break
        except TimeoutError:
            raise Refusal(
                408,
                f"The request did not arrive within {self._timeout:g} seconds.",
                {"Connection": "close"},
            ) from None
        if size > self._max_body:
            raise too_long
        return bytes(body)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Runs the application until it is done or the client disconnects."""

        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        work = asyncio.ensure_future(self._app(scope, replay, send))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise _ClientGone
            work.result()
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
