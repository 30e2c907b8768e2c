"""Who signs: a key pair for each site, made where it is used, and the list of all members with their public keys.

Ed25519 signs (RFC 8032), X25519 is what is encrypted to (RFC 7748). Public keys are exchanged beforehand, by a way that
the sites trust; the list is the same everywhere, and every message names its digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.config.load import mapping_in
from dpfl_plugin.errors import ConfigError, nearest, require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

SERVER: Final = "server"  # the name of the member that is no silo
_PUBLIC: Final = "dpfl-public-1:"
_SECRET: Final = "dpfl-secret-1:"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")  # of a folder, too: no dots, no slashes, the same in any case
_KEYS: Final = ("server", "silos", "encrypt", "num_records")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What others know of a member.

    Attributes:
        text: as it is written in the list of members.
    """

    text: str
    verifies: Ed25519PublicKey
    encrypts: X25519PublicKey

    @classmethod
    def parse(cls, text: object, where: str) -> PublicKey:
        """Raise ConfigError, which begins with ``where``, unless it is one that `new_key` made."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        both = _decoded(text, _PUBLIC, f"{where}={str(text)[:80]!r} is no public key, as `dpfl keys show` prints it")
        verifies, encrypts = Ed25519PublicKey.from_public_bytes(both[:32]), X25519PublicKey.from_public_bytes(both[32:])
        return cls(str(text), verifies, encrypts)

    @property
    def fingerprint(self) -> str:
        """To be compared by telephone: 128 bits of its sha256, in groups of four digits."""
        digits = hashlib.sha256(self.text.encode()).hexdigest()[:32]
        return " ".join(digits[first : first + 4] for first in range(0, 32, 4))


@dataclass(frozen=True, slots=True)
class SecretKey:
    """What one site alone has."""

    signs: Ed25519PrivateKey
    decrypts: X25519PrivateKey

    @classmethod
    def read(cls, path: Path) -> SecretKey:
        """The one in a file.

        Raises:
            ConfigError: it is missing, no such key, or others may read it.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        try:
            with path.open("rb") as file:
                mode, text = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(1000).decode(errors="replace")
        except OSError as error:
            raise ConfigError(
                f"{path}: the key cannot be read ({error.strerror}). Make one by `dpfl keys new NAME`."
            ) from error
        require(not mode & 0o077, f"{path}: its mode", oct(mode), "let nobody else read it", f"chmod 600 {path}")
        both = _decoded(text.strip(), _SECRET, f"{path} is no secret key, as `dpfl keys new` makes it")
        return cls(Ed25519PrivateKey.from_private_bytes(both[:32]), X25519PrivateKey.from_private_bytes(both[32:]))

    @property
    def public(self) -> PublicKey:
        both = self.signs.public_key().public_bytes_raw() + self.decrypts.public_key().public_bytes_raw()
        return PublicKey(_encoded(both, _PUBLIC), self.signs.public_key(), self.decrypts.public_key())

    @property
    def text(self) -> str:
        """As a file has it."""
        return _encoded(self.signs.private_bytes_raw() + self.decrypts.private_bytes_raw(), _SECRET)


def new_key() -> SecretKey:
    """From the operating system's random bits."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return SecretKey(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part: the server, and silos 0, 1, ... in the order of the list.

    Attributes:
        keys: by name, the server's included. silos: their names.
        encrypt: whether messages can be read by their receiver only. num_records: of the smallest silo, where an
            algorithm plans by it.
        digest: of all of it, which every message names: nobody is talked into another list, or out of encryption.
    """

    keys: Mapping[str, PublicKey]
    silos: tuple[str, ...]
    encrypt: bool = False
    num_records: int | None = None

    @classmethod
    def read(cls, path: Path) -> Members:
        """Those of a file: ``server: KEY``, ``silos: {NAME: KEY, ...}``, and if wanted ``encrypt: true``.

        Raises:
            ConfigError: it is missing, or anything in it is wrong.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: the list of members cannot be read: {error}. See docs/folder.md.") from error
        return cls.of(mapping_in(text, path), str(path))

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Members:
        """Those that a mapping lists, as `read`."""
        for key in values:
            require(key in _KEYS, f"{source}: key", key, f"be one of {', '.join(_KEYS)}{nearest(str(key), _KEYS)}")
        silos, encrypt, least = values.get("silos"), values.get("encrypt", False), values.get("num_records")
        if not isinstance(silos, Mapping) or not silos:
            raise ConfigError(f"{source}: silos must map the name of each silo to its public key (dpfl keys show).")
        require(isinstance(encrypt, bool), f"{source}: encrypt", encrypt, "be true or false")
        keys = {SERVER: PublicKey.parse(values.get(SERVER), f"{source}: server")}
        for name, key in silos.items():
            check_name(name, f"{source}: silos")
            keys[name] = PublicKey.parse(key, f"{source}: silos: {name}")
        names: dict[str, str] = {}
        for name, public in keys.items():
            if (other := names.setdefault(public.text, name)) != name:
                raise ConfigError(f"{source}: {other} and {name} have the same key: each site makes one of its own.")
        return cls(keys, tuple(silos), encrypt, least)

    @property
    def digest(self) -> str:
        values = [self.encrypt, self.num_records, *([name, key.text] for name, key in self.keys.items())]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]

    def name_of(self, key: SecretKey) -> str:
        """Whose key it is.

        Raises:
            ConfigError: nobody's.
        """
        mine = key.public.text
        for name, public in self.keys.items():
            if public.text == mine:
                return name
        raise ConfigError(
            f"this key is of no member that is listed: its public half is {mine}. Put that in the list of members, at "
            "every site, or name the key that is meant."
        )


def is_name(name: object) -> bool:
    """Whether a silo may be called so."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name != SERVER


def check_name(name: object, source: str) -> None:
    """Raise ConfigError unless a site may be called so."""
    require(is_name(name), f"{source}: name", name, "be of a-z, 0-9, '-' and '_', at most 40 of them, and not 'server'")


def _encoded(data: bytes, prefix: str) -> str:
    return prefix + base64.b64encode(data).decode()


def _decoded(text: object, prefix: str, wrong: str) -> bytes:
    if isinstance(text, str) and text.startswith(prefix):
        try:
            found = base64.b64decode(text.removeprefix(prefix), validate=True)
        except (binascii.Error, ValueError):
            found = b""
        if len(found) == 64:
            return found
    raise ConfigError(f"{wrong}.")
