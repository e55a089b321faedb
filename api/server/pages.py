"""
``/docs``: the API's description as a page for people.

Its script and style come from this gateway (the package fastapi-offline carries Swagger UI): whoever looks may have no
way to the internet.
"""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

PAGE = "/docs"
_STATIC = f"{PAGE}/static"


def add_to(app: FastAPI) -> None:
    """Serve the page and what it loads. ``app`` must have no page of its own there (``docs_url=None``)."""

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
