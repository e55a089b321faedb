"""Where a caller reached the gateway."""

from starlette.requests import Request


def base_url(request: Request) -> str:
    """
    Where the caller reached this gateway, without a slash at its end. A proxy in front that ends TLS says so in
    ``X-Forwarded-Proto``.
    """
    url = request.base_url
    if request.headers.get("x-forwarded-proto", "").partition(",")[0].strip() == "https":
        url = url.replace(scheme="https")
    return str(url).rstrip("/")
