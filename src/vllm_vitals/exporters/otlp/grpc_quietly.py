"""gRPC, imported so that its core keeps to errors: by itself it writes a line to stderr for every failed handshake."""

import os

VARIABLE = "GRPC_VERBOSITY"

_given = os.environ.get(VARIABLE)
os.environ.setdefault(VARIABLE, "ERROR")  # read once, at the import; later it has no effect
try:
    import grpc
finally:
    if _given is None:
        del os.environ[VARIABLE]

__all__ = ["grpc"]
