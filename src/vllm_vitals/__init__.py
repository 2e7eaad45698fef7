"""The vital signs of a vLLM engine, read from the inside at every step."""

from importlib.metadata import version

__version__ = version("vllm-vitals")
