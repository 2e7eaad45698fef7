"""Each part by itself."""
