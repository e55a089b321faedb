"""
``/docs``: the API's description in Swagger UI.

The gateway serves the script and the style itself (from the package fastapi-offline), because a browser may have no
access to the internet.
"""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

PAGE = "/docs"
_STATIC = f"{PAGE}/static"


def add_to(app: FastAPI) -> None:
    """Add the page and the files that it loads to ``app``, which must be made with ``docs_url=None``."""

    @app.get(PAGE, include_in_schema=False)
    def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=f"{app.title}: API",
            swagger_js_url=f"{_STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{_STATIC}/swagger-ui.css",
            swagger_favicon_url=f"{_STATIC}/favicon.png",
        )

    app.mount(_STATIC, StaticFiles(directory=str(files("fastapi_offline") / "static")))
