"""
The dashboard's files (api/ui), served from memory to everybody: they hold no data and no secret.

A file's address holds the hash of all files, so a browser keeps it for ever. Every other path below ``/ui/`` is the one
page, whose script reads the path; it names the modules that the script will need there, so that they come together.
"""

import gzip
import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from api.server.zipped import takes_gzip
from smore.domain.errors import NotFound

FOLDER: Final = Path(__file__).parents[1] / "ui"
PAGE: Final = "/ui/"
#: What stands in the page for the address of the files, and for the modules of an address.
BASE: Final = b"{{base}}"
PRELOADS: Final = b"{{preloads}}"
_IMPORT: Final = re.compile(rb'\bfrom ?"(\.[^"]+)"')
#: A line of core/router.js: an address, and the module of its page.
_ROUTE: Final = re.compile(rb'^  \["/ui/([^"]*)", "(\w+)"', re.MULTILINE)
#: A page may load what this gateway serves, ask it alone, and be in no other page. Only styles of elements may be inline:
#: the widths of bars.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file as it is sent, plain and compressed."""

    kind: str
    plain: bytes
    zipped: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> "File":
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        return cls(kind=kind, plain=content, zipped=gzip.compress(content, 9, mtime=0))

    def answer(self, request: Request, headers: Mapping[str, str]) -> Response:
        if takes_gzip(request):
            return Response(self.zipped, 200, {**_HEADERS, **headers, "Content-Encoding": "gzip"}, self.kind)
        return Response(self.plain, 200, {**_HEADERS, **headers}, self.kind)


def _shells(contents: Mapping[str, bytes], page: bytes, base: str) -> dict[str, File]:
    """The page for each address of the router, without ``/ui/``."""
    shells = {}
    for address, module in _ROUTE.findall(contents["core/router.js"]):
        needed: list[str] = []
        # What every page needs comes first.
        for root in ("core/app.js", f"pages/{module.decode()}.js"):
            needed.append(root)
            for name in needed:
                around = posixpath.dirname(name)
                others = [posixpath.normpath(f"{around}/{path.decode()}") for path in _IMPORT.findall(contents[name])]
                needed += [other for other in dict.fromkeys(others) if other not in needed]
        links = "".join(f'<link rel="modulepreload" href="{base}/{name}">' for name in needed[1:])
        text = page.replace(PRELOADS, links.encode()).replace(BASE, base.encode())
        shells[address.decode()] = File.of("index.html", text)
    return shells


def add_to(app: FastAPI, folder: Path = FOLDER) -> None:
    """Add the page and its files, as they are in ``folder`` now, to ``app``."""
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hashed = hashlib.sha256()
    for name in sorted(contents):
        hashed.update(b"%b\0%d\0%b" % (name.encode(), len(contents[name]), contents[name]))
    version = hashed.hexdigest()[:16]
    base = f"{PAGE}a/{version}"
    shells = _shells(contents, contents.pop("index.html"), base)
    files = {name: File.of(name, content) for name, content in contents.items()}
    tag = f'W/"{version}"'

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None or request.path_params["version"] != version:
            raise NotFound("This version of SMore has no such file: reload the page.")
        return found.answer(request, {"Cache-Control": _FOR_EVER})

    async def shell(request: Request) -> Response:
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**_HEADERS, **headers})
        # Names have no slash.
        section, _, name = request.path_params["path"].partition("/")
        return shells.get(f"{section}/*" if name else section, shells[""]).answer(request, headers)

    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return RedirectResponse(PAGE)

    app.add_route(f"{PAGE}a/{{version}}/{{name:path}}", file, include_in_schema=False)
    app.add_route(f"{PAGE}{{path:path}}", shell, include_in_schema=False)
    app.add_route("/", root, include_in_schema=False)
