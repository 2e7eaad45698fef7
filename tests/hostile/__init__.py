"""What hostile clients, peers and files send."""
