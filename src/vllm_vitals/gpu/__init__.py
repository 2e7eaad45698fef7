"""What the GPUs of this vLLM say of themselves, sampled on a thread of its own."""
