# PYTHON: any Python from 3.10; the demo and the tests against a real vLLM look for a 3.11 or newer by themselves.
PYTHON ?= python3
NOX = .venv/bin/nox

.PHONY: demo test lint bench docs clean

demo: ## Start a real vLLM on this CPU with the plugin, put load on it, show live figures.
	$(PYTHON) tests/live/bootstrap.py
	.venv-vllm/bin/python -m tests.live.demo $(ARGS)

test: $(NOX) ## Run every test: unit, oldest dependencies, many vLLM releases, a real vLLM, a real Prometheus.
	$(NOX) $(ARGS)

lint: $(NOX) ## Check style and types.
	$(NOX) -s lint

bench: ## Measure the cost to serving, side by side with what there is.
	$(PYTHON) tests/live/bootstrap.py
	.venv-vllm/bin/python -m tests.bench $(ARGS)

docs: ## Write the generated pages anew.
	.venv/bin/vllm-vitals metrics --markdown > docs/metrics.md
	.venv/bin/vllm-vitals settings --markdown > docs/settings.md

clean: ## Remove every environment and cache.
	rm -rf .venv .venv-vllm .nox .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(NOX): pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable . nox
	touch $(NOX)
