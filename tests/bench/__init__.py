"""What each way of recording a vLLM step costs the serving process: run with `python -m tests.bench`."""
