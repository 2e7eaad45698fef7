"""What several packages share and none of them owns."""
