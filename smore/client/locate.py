"""Where the platform is and with which key: arguments, environment, or a platform that runs in this folder."""

import os
from pathlib import Path

import httpx
import msgspec


# ---- the clients -----------------------------------------------------------------------------------------------------
def locate(url: str | None, key: str | None) -> tuple[str, str | None]:
    """
    Where the platform is and the API key: as given, else SMORE_URL and SMORE_API_KEY, else this machine's platform.

    The key that lies in the platform's home goes to this machine only: another host's owner must not be handed it.
    """
    from smore.process.settings import Settings

    url = url or os.environ.get("SMORE_URL")
    key = key or os.environ.get("SMORE_API_KEY")
    config = Settings()
    if url is None:
        url = _running_here(config.home) or _configured(config.api.host, config.api.port)
        local = True
    else:
        local = httpx.URL(url).host in ("127.0.0.1", "::1", "localhost")
    if key is None and local:
        try:
            key = (config.home / "key").read_text().strip() or None
        except OSError:
            key = None
    return url.rstrip("/"), key


def _running_here(home: Path) -> str | None:
    """
    The gateway of the platform that ``smore up`` has started in this home (smore/local/machine.py writes it down).
    """
    try:
        found: str = msgspec.json.decode((home / "run" / "endpoints.json").read_bytes())["gateway_url"]
        return found
    except (OSError, ValueError, KeyError):
        return None


def _configured(host: str, port: int) -> str:
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, not bound to
    host = anywhere.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
