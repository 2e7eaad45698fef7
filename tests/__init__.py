"""Everything that tests vllm-vitals."""
