"""Listening on a port, as the exporter does."""

import socket


def addresses(host: str) -> list[str] | OSError:
    """Return the addresses that the endpoint will listen on, IPv4 first, as the exporter does."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError(str(error))
    return sorted({str(sockaddr[0]) for *_, sockaddr in found}, key=lambda address: ":" in address)


def listen(address: str, number: int) -> OSError | None:
    """Listen for a moment, just as the exporter's server does; return what was in the way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, number))
            probe.listen()
    except OSError as error:
        return error
    return None
