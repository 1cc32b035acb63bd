"""Ports: the public listening socket, and free ports for everything else.

Owns how a port is chosen and what is said when it is taken. Called by the supervisor only.
"""

import errno
import socket

from infra.errors import StartupError
from infra.ports import Entropy
from schemas import limits

__all__ = ["claim_port", "free_port", "listen"]

# Below the range that outgoing connections draw from, so that none of those takes the port first.
_FREE_FIRST, _FREE_LAST = 10_000, 30_000
_FREE_TRIES_MAX = 200

_chosen: set[int] = set()
"""Ports that this process has chosen; they may not be listened on yet."""


def listen(host: str, port: int, flag: str) -> socket.socket:
    """Return a listening socket that children may inherit; port 0 takes any free one.

    Raises: StartupError naming the port and `flag` where it is taken or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(limits.LISTEN_BACKLOG)
    except OSError as error:
        opened.close()
        raise _unusable(host, port, flag, error) from error
    opened.set_inheritable(True)
    return opened


def claim_port(host: str, port: int, flag: str, entropy: Entropy) -> int:
    """Return `port` after checking that it is free, or any free one for 0. Raises StartupError."""
    if port == 0:
        return free_port(entropy, host)
    listen(host, port, flag).close()
    _chosen.add(port)
    return port


def free_port(entropy: Entropy, host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on now, and never one that was chosen here before.

    Raises: StartupError where none was found.
    """
    for _ in range(_FREE_TRIES_MAX):
        port = _FREE_FIRST + entropy.bits(32) % (_FREE_LAST - _FREE_FIRST)
        if port in _chosen:
            continue
        try:
            listen(host, port, "").close()
        except StartupError:
            continue
        _chosen.add(port)
        return port
    raise StartupError(f"found no free port on {host} between {_FREE_FIRST} and {_FREE_LAST}")


def _unusable(host: str, port: int, flag: str, error: OSError) -> StartupError:
    match error.errno:
        case errno.EADDRINUSE:
            advice = (
                f"port {port} on {host} is taken: end what listens there, or give {flag} another "
                "one (0 = any free)"
            )
        case errno.EACCES:
            advice = f"port {port} on {host} needs more rights: give {flag} one from 1024 up"
        case _:
            advice = f"cannot listen on {host} port {port}: {error.strerror or error}"
    return StartupError(advice)
