"""Limits of the scrape endpoint for its clients. `docs/security.md` has them as a table."""

HEAD_BYTES = 8192
"""Bytes of a request's head. Prometheus sends about 500; nothing is parsed before this is checked."""
HEAD_FIELDS = 100
"""Header fields of a request."""
MEDIA_RANGES = 32
"""Entries of an Accept or Accept-Encoding header that are read, and parameters of each."""
QUERY_FIELDS = 256
"""Fields of a query, such as `name[]=...`."""

HANDSHAKE_SECONDS = 2.0
"""Seconds from the connection to the end of the TLS handshake."""
HEAD_SECONDS = 2.0
"""Seconds for a complete request head, in any number of pieces. They begin after the TLS handshake."""
EXCHANGE_SECONDS = 30.0
"""Seconds from the connection to the last byte of the response."""
LINGER_SECONDS = 1.0
"""Seconds in which a client may still send after its response, so that no reset destroys the response."""
LINGER_BYTES = 65536
"""Bytes that are read and discarded in that time."""

CLIENTS = 160
"""Connections at once."""
ADDRESS_CLIENTS = 80
"""Connections at once from one address."""
WAITING = 128
"""Requests at once that wait for a page. The other connections are reserved for probes."""
ADDRESS_WAITING = 64
"""Requests at once of one address that wait for a page."""
BACKLOG = 128
"""Connections that the kernel keeps until they are accepted."""

RENDER_BURST_SECONDS = 0.25
"""Seconds of processor time that pages may take without a pause."""
RENDER_SHARE = 0.25
"""Share of the time for which pages are rendered once that is used up. Scrapers every few seconds stay far below."""

ANSWER_BYTES = 32 * 1024 * 1024
"""Bytes of all responses being sent. Clients with the same page share it. One response may have more."""
SEND_BYTES = 128 * 1024
"""Bytes of one connection that the kernel is asked to hold for sending."""
RECEIVE_BYTES = 16 * 1024
"""Bytes of one connection that the kernel is asked to hold before we read them."""

QUICK_READS = 4
"""Number of immediate reads of a connection; after them, one per `TICK_SECONDS`."""
TICK_SECONDS = 0.05
"""Seconds between checks of the deadlines, and between reads from a client that sends in small pieces."""
ACCEPTS = 32
"""Connections accepted in a row."""
REST_SECONDS = 300e-6
"""Rest of the connections' thread after each piece of work, so that a flood gets only a part of the time."""
PAUSE_SECONDS = 0.5
"""Pause of accepting when the system has no descriptor or memory for a connection."""
