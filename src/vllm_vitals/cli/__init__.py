"""The `vllm-vitals` command."""

from vllm_vitals.cli.app import app

__all__ = ["app"]
