"""The Celery app of the platform's processes."""

import os
import warnings
from typing import Any

import pytest
from celery import platforms

from smore.process.settings import RedisSettings, Settings
from smore.redis.celery import make_app


def test_root_is_nothing_to_warn_of_where_messages_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app = make_app("test", Settings(redis=RedisSettings(url="redis://nowhere")), ["a"])
        check: Any = platforms
        check.check_privileges(app.conf.accept_content)
