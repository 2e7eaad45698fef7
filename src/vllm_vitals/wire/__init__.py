"""How serving processes send their records over a Unix socket to the process that holds the collector; Linux only."""
