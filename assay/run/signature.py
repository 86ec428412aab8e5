"""Signatures of run configurations, by which Assay recognizes the runs of the user.

The first line of a run's ``config.toml`` is a comment with an HMAC of the rest of the file. The
signing key is random, is created when it is first needed, and stays on the machine. Runs from other
machines and edited configurations have no valid signature.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from assay.host.files import state_folder, write_atomic
from assay.host.removal import remove_file

MARK = "# written by assay, signature "
KEY_BYTES = 32


class NoKey(Exception):
    """Raised if the user has no signing key and a new key cannot be created. The text is the
    reason.
    """


def write_config(path: Path, text: str) -> None:
    """Write the configuration of a run atomically, and sign it if the user has a key."""
    try:
        head = f"{MARK}{_signature(_user_key(), text.encode())}\n"
    # A user without a home directory can train, but must trust each run explicitly afterwards.
    except NoKey:
        head = ""
    write_atomic(path, (head + text).encode())


def why_not_own(path: Path) -> str:
    """Return why a configuration is not accepted as the user's own; "" if it is accepted."""
    try:
        key = _user_key()
    except NoKey as error:
        return f"you have no key to tell your own runs by: {error}"
    head, _, rest = path.read_bytes().partition(b"\n")
    # compare_digest takes equal time for every wrong signature, so timing reveals nothing.
    if hmac.compare_digest(head, f"{MARK}{_signature(key, rest)}".encode()):
        return ""
    return "you did not make it on this machine, or it was edited since"


def key_path() -> Path:
    """Return the path of the user's signing key. Raises NoKey if the user has no home directory."""
    try:
        return state_folder() / "key"
    except RuntimeError as error:
        raise NoKey(str(error)) from error


def _signature(key: bytes, text: bytes) -> str:
    return hmac.new(key, b"assay run configuration\n" + text, hashlib.sha256).hexdigest()


def _user_key() -> bytes:
    path = key_path()
    try:
        if not path.exists():
            _make_key(path)
        facts = path.stat()
        # Whoever can read the key can sign configurations, which then run code without consent.
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise NoKey(f"{path} can be read by others; delete it, and a new one is made")
        key = path.read_bytes()
    except OSError as error:
        raise NoKey(f"{path}: {error.strerror or error}") from error
    if len(key) != KEY_BYTES:
        raise NoKey(f"{path} is damaged; delete it, and a new one is made")
    return key


def _make_key(path: Path) -> None:
    """Write a new key atomically.

    If another process has just written a signing key, that key is used.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".key.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        # A hard link fails if the key exists already, whereas a rename would overwrite the key.
        # Two processes that create a key at the same time therefore use the same key.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        remove_file(temporary)
