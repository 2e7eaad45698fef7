"""The tests that run against any supported vLLM release, in its own environment."""
