"""What the scrape endpoint allows its clients. `docs/security.md` shows these limits as a table."""

HEAD_BYTES = 8192
"""Bytes of a request's head. Prometheus sends about 500; nothing is parsed before this is checked."""
HEAD_FIELDS = 100
"""Header fields of a request."""
MEDIA_RANGES = 32
"""Entries of an Accept or Accept-Encoding header that are looked at, and parameters of each."""
QUERY_FIELDS = 256
"""Fields of a query, such as `name[]=...`."""

HANDSHAKE_SECONDS = 2.0
"""Seconds from the connection to the end of the TLS handshake."""
HEAD_SECONDS = 2.0
"""Seconds for a whole request head, however it is cut; they begin after the TLS handshake."""
EXCHANGE_SECONDS = 30.0
"""Seconds from the connection to the last byte of the answer."""
LINGER_SECONDS = 1.0
"""Seconds in which a client may still send after its answer, so that a reset does not take the answer away."""
LINGER_BYTES = 65536
"""Bytes that are read and thrown away in that time."""

CLIENTS = 160
"""Connections at once."""
ADDRESS_CLIENTS = 80
"""Connections at once from one address."""
WAITING = 128
"""Requests at once that wait for a page. The other connections are the reserve from which probes are answered."""
ADDRESS_WAITING = 64
"""Requests at once of one address that wait for a page."""
BACKLOG = 128
"""Connections that the kernel keeps until they are accepted."""

RENDER_BURST_SECONDS = 0.25
"""Seconds of processor time that pages may take without a pause."""
RENDER_SHARE = 0.25
"""Share of the time for which pages are rendered once that is used up. Scrapers every few seconds stay far below."""

ANSWER_BYTES = 32 * 1024 * 1024
"""Bytes of all the answers that are being sent; clients that get the same page share it. One answer may have more."""
SEND_BYTES = 128 * 1024
"""Bytes of one connection that the kernel is asked to hold for sending."""
RECEIVE_BYTES = 16 * 1024
"""Bytes of one connection that the kernel is asked to hold before they are read."""

QUICK_READS = 4
"""Times that a connection is read as soon as there is something; after that, once in every `TICK_SECONDS`."""
TICK_SECONDS = 0.05
"""Seconds between two looks at the deadlines, and between two reads from a client that sends in small pieces."""
ACCEPTS = 32
"""Connections that are accepted before others get a turn."""
REST_SECONDS = 300e-6
"""Seconds that the thread of the connections rests after each piece of work, so that a flood gets a part of its time."""
PAUSE_SECONDS = 0.5
"""Seconds in which nothing is accepted when the system has no descriptor or memory for it."""
