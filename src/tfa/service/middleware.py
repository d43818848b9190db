"""What every request passes: bodies too large or too slow and pages of other origins are refused, headers are set."""

from __future__ import annotations

from asyncio import get_running_loop, timeout_at
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tfa.service.problems import HEADERS, Refused, problem
from tfa.service.settings import ServiceSettings, is_loopback

_MANY = ("/v1/query/batch", "/v1/images", "/v1/calibrations")  # routes that take several photos
CHANGING = ("POST", "PUT", "PATCH", "DELETE")


def megabytes(number: int) -> str:
    return f"{number / 1e6:.3g} MB"


class BodyLimit:
    """Counts the bytes of a body as they arrive: a client may say another length than it sends, or none."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        many = scope["path"].rstrip("/") in _MANY
        limit = self.settings.many_bytes if many else self.settings.single_bytes
        refusal = Refused(
            413,
            f"the request is larger than {megabytes(limit)}; a photo may have {megabytes(self.settings.max_upload)}"
            f"{', send fewer photos at a time' if many else ', send a smaller one'}",
        )
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            await problem(refusal.status, refusal.public)(scope, receive, send)
            return
        arrived, complete = 0, False
        deadline = get_running_loop().time() + self.settings.body_seconds

        async def counted() -> Message:
            nonlocal arrived, complete
            if complete:
                return await receive()  # waits for the client to hang up
            try:
                async with timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                seconds = f"{self.settings.body_seconds:g}"
                raise Refused(408, f"the request did not arrive within {seconds} s; send it again") from None
            arrived += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if arrived > limit:
                raise refusal
            return message

        await self.app(scope, counted, send)


class OriginGuard:
    """Without API keys a browser is the way in: pages of other origins may not edit, nor point their name here."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sentence = self._objection(scope) if scope["type"] == "http" else None
        if sentence is None:
            await self.app(scope, receive, send)
        else:
            await problem(403, sentence)(scope, receive, send)

    def _objection(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.settings.checks_host and not is_loopback(_name(host)):
            return (
                "this service runs without API keys and answers to localhost only, not to the name it was called by; "
                "start it with API keys, or with --no-auth"
            )
        if origin is None or scope["method"] not in CHANGING or "*" in self.settings.cors:
            return None
        if origin in self.settings.cors or urlsplit(origin).netloc == host:
            return None
        return f"a page of {origin} may not send requests here; start the service with --cors {origin} to allow it"


def _name(host: str) -> str:
    """A Host header without its port."""
    return urlsplit(f"//{host}").hostname or ""


class SecurityHeaders:
    """Puts the headers on every answer that passes, refusals of other guards too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, with_headers)
