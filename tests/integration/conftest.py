"""The gateway's application, one for all tests of a session."""

import pytest

from api.app import Application, create_app
from smore.process.settings import Settings


@pytest.fixture(scope="session")
def application(config: Settings) -> Application:
    """
    Serve it with ``tests.support.gateway.Served``: all that it has at work it makes anew whenever it is served. Its routes
    it reads once, at the first request.
    """
    return create_app(config)
