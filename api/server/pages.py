"""
``/openapi.json``: the API's description, with the address at which the caller reached the gateway. ``/docs``: the same in
Swagger UI.

The gateway serves the script and the style itself (from the package fastapi-offline), because a browser may have no
access to the internet.
"""

from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from api.address import base_url
from api.server.description import at

PAGE = "/docs"
DOCUMENT = "/openapi.json"
_STATIC = f"{PAGE}/static"


def add_to(app: FastAPI) -> None:
    """
    Add the description, the page and the files that it loads to ``app``, which must be made without ``docs_url`` and
    ``openapi_url``.
    """

    @app.get(DOCUMENT, include_in_schema=False)
    def document(request: Request) -> JSONResponse:
        return JSONResponse(at(app.openapi(), base_url(request)))

    @app.get(PAGE, include_in_schema=False)
    def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=DOCUMENT,
            title=f"{app.title}: API",
            swagger_js_url=f"{_STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{_STATIC}/swagger-ui.css",
            swagger_favicon_url=f"{_STATIC}/favicon.png",
        )

    app.mount(_STATIC, StaticFiles(directory=str(files("fastapi_offline") / "static")))
