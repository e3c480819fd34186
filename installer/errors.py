"""Errors of an installation, and what pip's and the compiler's output means. Exit codes as in docs/run.md."""

from __future__ import annotations

import errno
import re
from pathlib import Path

UNEXPECTED, USAGE, NOT_FOUND, NETWORK, INTEGRITY, RESOURCES = 1, 2, 3, 5, 6, 8


class InstallError(Exception):
    """What happened and why, what to do next (hint), and the exit code."""

    def __init__(self, message: str, hint: str = "", code: int = UNEXPECTED) -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code


class Interrupted(BaseException):
    """A signal asked the installation to end. code: 128 and the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


_KNOWN = (  # what a command printed, what that means, what to do, exit code; the first that fits
    (
        r"No space left on device|\[Errno 28\]|Disk quota exceeded",
        "the disk is full",
        "make room and call this again",
        RESOURCES,
    ),
    (
        r"Killed signal terminated program|out of memory allocating|\bMemoryError\b",
        "the compiler ran out of memory",
        "CMAKE_BUILD_PARALLEL_LEVEL=1 compiles one file at a time",
        RESOURCES,
    ),
    (
        r"DO NOT MATCH THE HASHES|HashMismatch|Expected sha256",
        "a downloaded file has another hash than the package index says",
        "try again; if it stays, check the index or proxy that pip is set to (pip config list)",
        INTEGRITY,
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "the certificate of the package index is not trusted",
        "set PIP_CERT to your network's certificates, or check the clock",
        NETWORK,
    ),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|"
        r"connection broken by '\w+Error|Temporary failure in name resolution|Network is unreachable",
        "pip cannot reach its package index",
        "check the connection, and proxy and index in `pip config list`; then call this again",
        NETWORK,
    ),
    (
        r"\b(?:401|403) (?:Client )?Error|HTTP error 40[13]\b",
        "the package index refuses access",
        "check the index in `pip config list`",
        NETWORK,
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "pip finds no {what}",
        "check the indexes in `pip config list`; offline, PIP_FIND_LINKS needs all packages",
        NOT_FOUND,
    ),
)
_FAULT = re.compile(r"^\s*(?:.*?\berror: .+|CMake Error.*|ERROR: .+|\*\*\* .*failed.*)", re.I | re.M)


def explained(output: str, what: str) -> InstallError:
    """The error for a failed command. output: what it printed; what: what it was to do, "compiling ..."."""
    for pattern, meaning, hint, code in _KNOWN:
        if found := re.search(pattern, output):
            return InstallError(f"{what} failed: {meaning.format(**found.groupdict())}", hint, code)
    fault = _FAULT.search(output)
    reason = " ".join(fault[0].split())[:200] if fault else "it gave no reason"
    return InstallError(f"{what} failed: {reason}", "the log has the details")


def of_system(error: OSError, path: Path) -> InstallError:
    """The error for a file or directory that cannot be read or written."""
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InstallError(
            f"{where} cannot be written: the disk is full", "make room and call this again", RESOURCES
        )
    return InstallError(
        f"{where} cannot be used: {error.strerror or error}",
        "the installation is written into .venv of the checkout: make the checkout writable, or copy it",
        RESOURCES,
    )
