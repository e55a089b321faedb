"""Where the platform is and which key it takes: arguments, else the environment, else the platform of this machine."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

#: As the platform's own settings have them (smore/process/settings.py).
DEFAULT_HOME: Final = ".smore"
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = "8400"


def locate(url: str | None, key: str | None) -> tuple[str, str | None]:
    """
    The platform's URL and the API key, None = there is none.

    The URL is the argument, else SMORE_URL, else that of the platform which ``smore up`` started in SMORE_HOME, else
    SMORE_API__HOST and SMORE_API__PORT. The key is the argument, else SMORE_API_KEY, else the one in SMORE_HOME. That
    one is sent to this machine only, because no other host may read it.
    """
    home = Path(os.environ.get("SMORE_HOME", DEFAULT_HOME))
    url = url or os.environ.get("SMORE_URL")
    key = key or os.environ.get("SMORE_API_KEY")
    if url is None:
        url = _running_in(home) or _configured()
        local = True
    else:
        local = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
    if key is None and local:
        try:
            key = (home / "key").read_text().strip() or None
        except OSError:
            key = None
    return url.rstrip("/"), key


def _running_in(home: Path) -> str | None:
    """The gateway's URL that ``smore up`` has written into its home; None = no platform runs there."""
    try:
        return str(msgspec.json.decode((home / "run" / "endpoints.json").read_bytes())["gateway_url"])
    except (OSError, ValueError, KeyError):
        return None


def _configured() -> str:
    host = os.environ.get("SMORE_API__HOST", DEFAULT_HOST)
    # A gateway that listens on every address is reached on the loopback one.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound to
    port = os.environ.get("SMORE_API__PORT", DEFAULT_PORT)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
