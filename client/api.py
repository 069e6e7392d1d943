"""How the SDK reaches a server: the documented `ApiManager`, and an implementation for those who have none."""

from __future__ import annotations

from typing import Final, Protocol

import httpx

# below the 5 s after which servers close an idle connection, so that no request meets a connection that is just ending
_KEEP_ALIVE_SECONDS: Final = 3.0


class ApiManager(Protocol):
    """What a JobManager needs: an HTTP client that threads may share, who asks, and where the server is."""

    http: httpx.Client

    def get_headers(self) -> dict[str, str]:
        """Headers of every request; asked for each time, so that a token may be renewed."""
        ...

    @property
    def base_url(self) -> str:
        """Everything before `/v1/joblib`; empty where the HTTP client has a base URL of its own."""
        ...


class HttpApi:
    """A server by its URL, and the API key if it wants one; ValueError for what is no URL or no key."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._url = _checked(url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("an API key consists of printable ASCII characters")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.http = httpx.Client(limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS))

    def get_headers(self) -> dict[str, str]:
        """The API key."""
        return dict(self._headers)

    @property
    def base_url(self) -> str:
        """The URL without a slash at its end."""
        return self._url

    def close(self) -> None:
        """Close its connections."""
        self.http.close()


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is no URL of a server; it looks like http://127.0.0.1:8000")
    if parsed.query or parsed.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; give the part before it")
    return url.rstrip("/")
