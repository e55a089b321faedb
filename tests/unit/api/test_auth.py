"""API keys: who gets in, and what a revoked key still opens (nothing)."""

from typing import Any, cast

import pytest

from api.auth import Access, require_operator
from smore.domain.access import Scope, new_token, read_token
from smore.domain.errors import Forbidden, Unauthorised
from smore.redis.catalog import AsyncCatalog, KeyEntry


class Catalog:
    def __init__(self) -> None:
        self.keys: dict[str, KeyEntry] = {}

    def add(self, *scopes: str, project: str = "default") -> bytes:
        token = new_token()
        read = read_token(token)
        assert read is not None
        self.keys[read[0]] = KeyEntry(id=read[0], project=project, digest=read[1], scopes=list(scopes))
        return token.encode()


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def access(catalog: Catalog) -> Access:
    return Access(cast(AsyncCatalog, cast(Any, catalog)))


def test_both_headers_open(catalog: Catalog, access: Access) -> None:
    token = catalog.add("invoke")

    for _ in range(2):
        assert access.caller(b"Bearer " + token, None, Scope.INVOKE).project == "default"
        assert access.caller(b"bearer  " + token, None, Scope.INVOKE).project == "default"
        assert access.caller(None, token, Scope.INVOKE).project == "default"


def test_what_is_not_a_key_does_not_open(catalog: Catalog, access: Access) -> None:
    token = catalog.add("invoke")
    other = catalog.add("invoke")
    mixed = token[:16] + other[16:]

    for authorization in (
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + token,
        token,
        b"Bearer " + token + b"x",
        b"Bearer " + mixed,
        b"Bearer \xff",
    ):
        with pytest.raises(Unauthorised):
            access.caller(authorization, None, Scope.INVOKE)
    for api_key in (b"", b"smk_", b"Bearer " + token):
        with pytest.raises(Unauthorised):
            access.caller(None, api_key, Scope.INVOKE)
    with pytest.raises(Unauthorised):
        access.caller(None, None, Scope.INVOKE)


def test_a_bad_bearer_is_not_saved_by_a_good_api_key(catalog: Catalog, access: Access) -> None:
    with pytest.raises(Unauthorised):
        access.caller(b"Bearer x", catalog.add("invoke"), Scope.INVOKE)


def test_a_scope_that_is_lacking_is_named(catalog: Catalog, access: Access) -> None:
    token = catalog.add("read", "admin")

    with pytest.raises(Forbidden, match="deploy"):
        access.caller(None, token, Scope.DEPLOY)


def test_a_revoked_key_is_forgotten(catalog: Catalog, access: Access) -> None:
    token = catalog.add("invoke")
    access.caller(None, token, Scope.INVOKE)
    catalog.keys.clear()

    access.forget()

    with pytest.raises(Unauthorised):
        access.caller(None, token, Scope.INVOKE)


def test_operators_are_of_the_default_project(catalog: Catalog, access: Access) -> None:
    require_operator(access.caller(None, catalog.add("admin"), Scope.ADMIN))
    with pytest.raises(Forbidden):
        require_operator(access.caller(None, catalog.add("admin", project="other"), Scope.ADMIN))
