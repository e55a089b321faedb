"""
Sealed secrets of functions and variables of jobs: AES-256 in Galois/Counter mode, bound to the project and the secret's name.

The key is a file of mode 0600, which the gateway and the workers read. Postgres, Redis and their backups hold sealed
values alone. A worker on another host needs a copy of the file. Whoever has both the file and the database has the
secrets.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from smore.domain.errors import PlatformError

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
#: The form of a sealed value: this byte, the nonce, the ciphertext with its tag.
_FORM: Final = b"\x01"


class Sealed(PlatformError):
    """The secret cannot be opened with this key."""

    code = "sealed"


class NoKey(PlatformError):
    """There is no key to seal secrets with."""

    code = "no_key"


def make_key(path: Path) -> None:
    """Make a key in this file, unless it exists."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written beside it and linked: two processes at once make one key, and nobody reads half of one.
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(_KEY_BYTES) + "\n")
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink()


class Vault:
    """Seals and opens values with one key."""

    def __init__(self, key: bytes) -> None:
        # Costs 20 ms to import: a worker whose functions have no secrets never pays them.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises NoKey."""
        try:
            key = bytes.fromhex(path.read_text())
        except (OSError, ValueError) as error:
            raise NoKey(f"{path}: {error}") from error
        if len(key) != _KEY_BYTES:
            raise NoKey(f"{path}: {_KEY_BYTES} bytes are expected, not {len(key)}")
        return cls(key)

    def seal(self, project: str, name: str, value: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return _FORM + nonce + self._cipher.encrypt(nonce, value.encode(), _bound(project, name))

    def unseal(self, project: str, name: str, sealed: bytes) -> str:
        """Raises Sealed where the key or the name differs, or the value is damaged."""
        from cryptography.exceptions import InvalidTag

        nonce = sealed[1 : 1 + _NONCE_BYTES]
        if sealed[:1] != _FORM or len(nonce) != _NONCE_BYTES:
            raise Sealed(f"{project}/{name} is in a form that this version does not know.")
        try:
            return self._cipher.decrypt(nonce, sealed[1 + _NONCE_BYTES :], _bound(project, name)).decode()
        except InvalidTag as error:
            raise Sealed(f"{project}/{name} was not sealed with this key.") from error


def seal_env(vault: Vault, project: str, job: str, env: Mapping[str, str]) -> bytes:
    """The variables of a job, bound to its name."""
    return vault.seal(project, f"job/{job}", json.dumps(dict(env)))


def unseal_env(vault: Vault, project: str, job: str, sealed: bytes) -> dict[str, str]:
    """Raises Sealed."""
    env: dict[str, str] = json.loads(vault.unseal(project, f"job/{job}", sealed))
    return env


def _bound(project: str, name: str) -> bytes:
    return f"{project}/{name}".encode()
