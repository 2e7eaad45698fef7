"""Checks against the real stats classes of vLLM releases, without installing vLLM."""
