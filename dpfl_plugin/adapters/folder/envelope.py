"""A message as bytes in a file: a line that says the format, a header, its signature, and what it carries.

    dpfl-folder 1
    {"from": "north", "to": ["server"], "run": ..., "sequence": 7, "tag": ..., "size": ..., "sha256": ..., ...}
    <Ed25519 signature of the two lines above, base64>
    <body: a message in the safetensors format, or that encrypted by HPKE>

The signature covers the header, and by its checksum the body. The header names run, members, sender, receivers and
sequence, and an answer the very request that it answers: in another place, or sent again, it is another's or late.
Encrypted bodies are sealed to one receiver by HPKE (RFC 9180: X25519, HKDF-SHA256, ChaCha20-Poly1305) with the header's
facts as ``info``, so that one that is cut out of an envelope opens in no other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import dpfl_plugin
from dpfl_plugin.adapters.folder.keys import Members, PublicKey, SecretKey
from dpfl_plugin.adapters.message import Message, parsed, value_of
from dpfl_plugin.errors import ConfigError, MessageError, UnsupportedError

VERSION: Final = 1
NAME: Final = "dpfl-folder"
HEAD_BYTES: Final = 2**18  # enough for the lines before the body: thousands of receivers
MOST_BYTES: Final = 2**31 - 1  # of a file: 2 GiB; what is encrypted in one piece has to be below that, too


class IncompleteError(MessageError):
    """Not all of it is there (yet), or what is there is damaged: it may still be written, synchronised or carried."""


class StrangerError(MessageError):
    """It is not signed by whom it says that it is from."""


class VersionError(MessageError):
    """It is in the format of another version."""


@dataclass(frozen=True, slots=True)
class About:
    """What a header says of its message.

    Attributes:
        kind: "request", "answer" or "end". sender, receivers: names of members.
        run, members: of the agreement, and of the list of members, see there.
        sequence: of the request, rising; round: of it, from 0; tag: of it, drawn at random by the server. In an answer
            they say what is answered.
        time: for people, by the sender's clock.
    """

    kind: str
    sender: str
    receivers: tuple[str, ...]
    run: str
    members: str
    sequence: int
    round: int = 0
    tag: str = ""
    time: str = ""

    def plain(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "from": self.sender,
            "to": list(self.receivers),
            "run": self.run,
            "members": self.members,
            "sequence": self.sequence,
            "round": self.round,
            "tag": self.tag,
            "time": self.time,
            "version": dpfl_plugin.__version__,
        }


@dataclass(frozen=True, slots=True)
class Head:
    """The lines before a body, their signature not checked yet.

    Attributes:
        start: where the body begins; size: of it.
    """

    about: About
    version: str
    size: int
    sha256: str
    encrypted: bool
    start: int
    signed: bytes
    signature: bytes


def seal(about: About, message: Message, key: SecretKey, to: PublicKey | None = None) -> bytes:
    """The file's bytes.

    Args:
        to: whom it is encrypted to; None to leave it readable.
    """
    facts, body = about.plain(), message.to_bytes()
    if to is not None:
        body = _suite().encrypt(body, to.encrypts, _info(facts))
    header = {**facts, "encrypted": to is not None, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    signed = f"{NAME} {VERSION}\n{json.dumps(header, sort_keys=True)}\n".encode()
    return signed + base64.b64encode(key.signs.sign(signed)) + b"\n" + body


def read_head(start: bytes) -> Head:
    """The lines before the body, from the first `HEAD_BYTES` of a file.

    Raises:
        IncompleteError: they are not all there; VersionError, MessageError: they are no such lines.
    """
    lines = start.split(b"\n", 3)
    if len(lines) < 4:
        if len(start) >= HEAD_BYTES:
            raise MessageError("it is not a message of dpfl_plugin.")
        raise IncompleteError("only a part of it is there.")
    first, header, signature, _ = lines
    name, _, version = first.decode(errors="replace").partition(" ")
    if name != NAME:
        raise MessageError("it is not a message of dpfl_plugin.")
    if version != str(VERSION):
        raise VersionError(
            f"it is in format {version[:20]!r} of messages, and this version of dpfl_plugin "
            f"({dpfl_plugin.__version__}) has format {VERSION}: install the same version at both ends."
        )
    try:
        values, decoded = parsed(header), base64.b64decode(signature, validate=True)
    except (MessageError, binascii.Error, ValueError) as error:
        raise MessageError("its header cannot be read.") from error
    beginning = len(first) + len(header) + 2
    return _head(values, start[:beginning], decoded, beginning + len(signature) + 1)


def _head(values: Mapping[str, Any], signed: bytes, signature: bytes, start: int) -> Head:
    receivers = value_of(values, "to", list)
    about = About(
        value_of(values, "kind", str),
        value_of(values, "from", str),
        tuple(str(one) for one in receivers),
        value_of(values, "run", str),
        value_of(values, "members", str),
        value_of(values, "sequence", int),
        value_of(values, "round", int),
        value_of(values, "tag", str),
        value_of(values, "time", str),
    )
    size, encrypted = value_of(values, "size", int), value_of(values, "encrypted", bool)
    if size < 0 or about.sequence < 0:
        raise MessageError("its header makes no sense.")
    version, sha256 = value_of(values, "version", str), value_of(values, "sha256", str)
    return Head(about, version, size, sha256, encrypted, start, signed, signature)


def verify(head: Head, members: Members, sender: str) -> None:
    """Raise StrangerError unless ``sender`` signed it."""
    from cryptography.exceptions import InvalidSignature

    if head.about.sender != sender:
        raise StrangerError(f"it says that it is from {head.about.sender[:40]!r}.")
    try:
        members.keys[sender].verifies.verify(head.signature, head.signed)
    except InvalidSignature as error:
        raise StrangerError(f"it is not signed with the key of {sender} that is listed here.") from error


def check_body(head: Head, body: bytes) -> None:
    """Raise IncompleteError unless it is what the header says."""
    if len(body) != head.size:
        raise IncompleteError(f"{len(body)} of its {head.size} bytes are there.")
    if hashlib.sha256(body).hexdigest() != head.sha256:
        raise IncompleteError("it is damaged: its checksum is another.")


def opened(head: Head, body: bytes, members: Members, key: SecretKey) -> Message:
    """What it carries; the signature has been checked, and the checksum.

    Raises:
        MessageError: it cannot be decrypted, is no message, or is not encrypted though all are to be.
    """
    if head.encrypted != members.encrypt:
        has = "is" if head.encrypted else "is not"
        raise MessageError(f"it {has} encrypted, and by the list of members here messages are not so.")
    if not head.encrypted:
        return Message.from_bytes(body)
    from cryptography.exceptions import InvalidTag

    facts = json.loads(head.signed.split(b"\n")[1])
    try:
        body = _suite().decrypt(body, key.decrypts, _info(facts))
    except (InvalidTag, ValueError) as error:
        raise MessageError("it cannot be decrypted: it is encrypted to another key, or to another message.") from error
    return Message.from_bytes(body)


def _info(facts: Mapping[str, Any]) -> bytes:
    """What an encrypted body is bound to: all that the header says but for what follows from the body."""
    bound = {key: value for key, value in facts.items() if key not in ("encrypted", "size", "sha256")}
    return f"{NAME} {VERSION}\n{json.dumps(bound, sort_keys=True)}".encode()


def _suite() -> Any:
    try:
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    except ImportError as error:
        raise UnsupportedError(
            "encrypt: true: this version of cryptography has no HPKE. Install a newer one: pip install -U cryptography."
        ) from error
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def check_size(num_bytes: int, limit: int, what: str) -> None:
    """Raise ConfigError where a message would be too large; asked before anybody is asked for anything."""
    if num_bytes > limit:
        raise ConfigError(
            f"{what} has {num_bytes} bytes, and a file {limit} at most (2 GiB). Use a smaller model, or another "
            "platform (docs/adapters.md)."
        )
