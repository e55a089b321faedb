"""The dashboard's files as the gateway serves them."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.app import Application
from api.server import ui
from smore.domain.errors import NotFound
from tests.support.gateway import Served, problem


@pytest.fixture
def http(application: Application) -> Iterator[httpx.Client]:
    with Served(application) as served, httpx.Client(base_url=served.url) as client:
        yield client


def test_every_page_is_the_one_page(http: httpx.Client) -> None:
    page = http.get("/ui/")

    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    preload = re.compile(r'<link rel="modulepreload" href="([^"]+)">')
    one = http.get("/ui/functions/echo?tab=try")
    assert (
        preload.sub("", one.text) == preload.sub("", page.text) == preload.sub("", http.get("/ui/nowhere/at/all").text)
    )
    named = preload.findall(one.text)
    assert "function.js" in {name.rpartition("/")[2] for name in named} and len(set(named)) == len(named)
    assert {http.get(name).status_code for name in named} == {200}
    assert "{{" not in page.text and re.search(r"/ui/a/[0-9a-f]{16}\b", page.text)
    assert http.get("/ui").headers["location"].endswith("/ui/")
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe-eval" not in policy and "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["referrer-policy"] == "no-referrer"


def test_a_page_that_is_known_is_not_sent_again(http: httpx.Client) -> None:
    tag = http.get("/ui/").headers["etag"]

    again = http.get("/ui/plan", headers={"If-None-Match": tag})

    assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag
    assert http.get("/ui/", headers={"If-None-Match": 'W/"0"'}).status_code == 200


def test_the_root_leads_browsers_there(http: httpx.Client) -> None:
    there = http.get("/", headers={"Accept": "text/html,*/*"})

    assert (there.status_code, there.headers["location"]) == (307, "/ui/")
    problem(http.get("/"), 404, "not_found")


def test_a_file_is_kept_for_ever_and_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<script src="{{base}}/core/app.js"></script>')
    (tmp_path / "core").mkdir()
    (tmp_path / "pages").mkdir()
    (tmp_path / "core" / "router.js").write_text('  ["/ui/", "cluster"],\n')
    (tmp_path / "pages" / "cluster.js").touch()
    script = tmp_path / "core" / "app.js"
    script.write_text("1 + 1;" * 100)

    def served() -> FastAPI:
        app = FastAPI()
        ui.add_to(app, tmp_path)
        return app

    def get(app: FastAPI, path: str, **headers: str) -> httpx.Response:
        async def call() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(call())

    def address(app: FastAPI) -> str:
        return str(get(app, "/ui/").text.split('"')[1])

    old = served()
    file = get(old, address(old))
    assert file.text == script.read_text() and file.headers["content-encoding"] == "gzip"
    assert int(file.headers["content-length"]) < 100 and "immutable" in file.headers["cache-control"]
    assert "javascript" in file.headers["content-type"] and file.headers["vary"] == "Accept-Encoding"
    plain = get(old, address(old), **{"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == file.text
    script.write_text("2 + 2;" * 100)
    new = served()
    assert address(new) != address(old) and get(old, address(old)).text == "1 + 1;" * 100
    for absent in (address(old), f"{address(new)}x", f"{address(new)}/%2e%2e/%2e%2e/index.html"):
        with pytest.raises(NotFound, match="reload"):
            get(new, absent)
