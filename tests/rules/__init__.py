"""Rules, as Prometheus itself evaluates them."""
