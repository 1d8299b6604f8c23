"""RouterError and its kinds, the router's own refusals in OpenAI's error shape, and their one table of statuses. PURE.

x RouterError            (500 server_error)
  + InvalidRequest       400 invalid_request_error
    + ContextTooLong     400
  + Unauthorized         401 authentication_error
  + Forbidden            403 permission_error
  + NotFound             404 not_found_error
    + ModelNotFound      404
  + MethodNotAllowed     405 invalid_request_error
  + RequestTimeout       408 invalid_request_error
  + PayloadTooLarge      413 invalid_request_error
  + UnsupportedEncoding  415 invalid_request_error
  + HeadersTooLarge      431 invalid_request_error
  + Overloaded           429 rate_limit_error (with Retry-After)
    + RateLimited        429 (with x-ratelimit-*)
  + UpstreamFailed       502 upstream_error
  + NoEndpoint           503 service_unavailable
  + ShuttingDown         503 service_unavailable
  + WorkersSilent        503 service_unavailable
  + NoWorker             503 service_unavailable
  + UpstreamTimeout      504 upstream_timeout
  + DeadlineExceeded     504 deadline_exceeded
x ConfigError            stops the start: one sentence that names the key and the mend
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class RouterError(Exception):
    """A refusal of the router's own. `message` is safe to show: no prompt, no key, no engine body in it."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON body: ``{"error": {"message", "type", "param", "code"}}``."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code or self.status}
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        fields = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            fields.append((b"retry-after", str(self.retry_after_s).encode()))
        return fields


class InvalidRequest(RouterError):
    status, type = 400, "invalid_request_error"


class ContextTooLong(InvalidRequest):
    code = "context_length_exceeded"


class Unauthorized(RouterError):
    status, type, code = 401, "authentication_error", "invalid_api_key"

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"www-authenticate", b"Bearer")]


class Forbidden(RouterError):
    status, type = 403, "permission_error"


class NotFound(RouterError):
    status, type = 404, "not_found_error"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(RouterError):
    status, type = 405, "invalid_request_error"

    def __init__(self, message: str, *, allow: str | None = None) -> None:
        """`allow`: the methods of that path, for the field that a 405 must carry."""
        super().__init__(message)
        self.allow = allow

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), *([] if self.allow is None else [(b"allow", self.allow.encode())])]


class RequestTimeout(RouterError):
    status, type, code = 408, "invalid_request_error", "request_timeout"


class UnsupportedEncoding(RouterError):
    status, type, code = 415, "invalid_request_error", "unsupported_content_encoding"

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"accept-encoding", b"identity")]


class PayloadTooLarge(RouterError):
    status, type = 413, "invalid_request_error"


class HeadersTooLarge(RouterError):
    status, type = 431, "invalid_request_error"


class Overloaded(RouterError):
    status, type, code = 429, "rate_limit_error", "router_overloaded"


class RateLimited(Overloaded):
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, retry_after_s: int | None = None, fields: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """`fields`: what is left of the rates, as header fields."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.fields = tuple(fields)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), *self.fields]


class UpstreamFailed(RouterError):
    status, type = 502, "upstream_error"


class NoEndpoint(RouterError):
    status, type, code = 503, "service_unavailable", "no_endpoint"


class ShuttingDown(RouterError):
    status, type, code = 503, "service_unavailable", "shutting_down"


class WorkersSilent(RouterError):
    status, type, code = 503, "service_unavailable", "workers_silent"


class NoWorker(RouterError):
    status, type, code = 503, "service_unavailable", "no_worker"


class UpstreamTimeout(RouterError):
    status, type = 504, "upstream_timeout"


class DeadlineExceeded(RouterError):
    status, type, code = 504, "deadline_exceeded", "deadline_exceeded"


class ConfigError(Exception):
    """Stops the start. The message is one sentence naming the key and the mend."""
