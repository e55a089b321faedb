"""URLs of Redis: redis-py and Celery write a unix socket differently."""

from urllib.parse import parse_qs, quote, unquote, urlsplit


def unix_url(socket: str, password: str) -> str:
    """The URL under which redis-py reaches the server at that socket."""
    return f"unix://:{quote(password, safe='')}@{quote(socket)}?db=0"


def celery_url(url: str) -> str:
    """
    The URL of the same Redis for kombu and Celery.

    Only ``unix://[[user]:password@]/path[?db=n&password=…]`` differs: it becomes
    ``redis+socket://[user]:password@/path?virtual_host=n``. Every other URL is returned as it is. Options that redis-py
    takes in the query are dropped: kombu hands unknown ones to the connection as text.
    """
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    query = parse_qs(parts.query)
    db = query.get("db", ["0"])[0]
    # parse_qs has unquoted the query already, the credentials before the @ are still quoted. redis-py lets the query
    # win.
    password = query["password"][0] if "password" in query else unquote(parts.password or "")
    user = query["username"][0] if "username" in query else unquote(parts.username or "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    return f"redis+socket://{login}{parts.path}?virtual_host={db}"
