"""A real vLLM on a CPU: how to get it, run it, load it and watch it."""
