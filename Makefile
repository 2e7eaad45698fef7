# PYTHON: any Python from 3.10; the demo and the tests against a real vLLM look for a 3.11 or newer by themselves.
PYTHON ?= python3
NOX = .venv/bin/nox
REPORT = .cache/report.json
RESULTS = .cache/results
GET_PIP = import subprocess, sys; from tests.live.bootstrap import debian_package; \
	(pip,) = debian_package('python3-pip-whl').glob('usr/share/python-wheels/pip-*.whl'); \
	subprocess.run([sys.executable, pip / 'pip', 'install', '--no-index', pip], check=True)
# Run the sessions of a tag and say what came of them; the status is that of the sessions.
RUN = rm -rf $(REPORT) $(RESULTS); mkdir -p $(RESULTS); \
	$(NOX) --report $(REPORT) $(1) $(ARGS); status=$$?; .venv/bin/python -m tests.summary $(REPORT) $(RESULTS); exit $$status

.PHONY: demo test test-more test-all lint fuzz bench docs pictures clean

demo: ## Start a real vLLM on this CPU with the plugin, put load on it, show live figures.
	$(PYTHON) tests/live/bootstrap.py
	.venv-vllm/bin/python -m tests.live.demo $(ARGS)

test: $(NOX) ## Run the tests, in ten minutes on two cores, with one real vLLM, Prometheus and OTLP receiver.
	@$(call RUN,-t test)

test-more: $(NOX) ## Run what `make test` leaves out: every Python, every release's stats, everything live.
	@$(call RUN,-t more)

test-all: $(NOX) ## Run every test there is, with random examples and on real engines of older releases; takes hours.
	@export VITALS_TEST_EFFORT=all; $(call RUN,-t all)

lint: $(NOX) ## Check style and types.
	$(NOX) -s lint

fuzz: $(NOX) ## Send a million mutated frames over the wire; the tests send some thousands.
	$(NOX) -s fuzz

bench: ## Measure the cost to serving, side by side with what there is.
	$(PYTHON) tests/live/bootstrap.py
	.venv-vllm/bin/python -m tests.bench $(ARGS)

docs: $(NOX) ## Write the generated pages anew.
	.venv/bin/vllm-vitals metrics --markdown > docs/metrics.md
	.venv/bin/vllm-vitals settings --markdown > docs/settings.md
	.venv/bin/vllm-vitals rules --markdown > docs/alerts.md
	.venv/bin/vllm-vitals rules --out deploy/prometheus/rules
	.venv/bin/vllm-vitals dashboards
	.venv/bin/vllm-vitals dashboards --source native
	.venv/bin/python -m helm.generate
	$(NOX) -s helm -- --rewrite -k "golden or plain"

pictures: ## Take the README's pictures anew, of a real run; takes a Chromium on the PATH.
	$(PYTHON) tests/live/bootstrap.py
	.venv-vllm/bin/python -m tests.live.pictures

clean: ## Remove every environment and cache.
	rm -rf .venv .venv-vllm* .nox .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Debian splits ensurepip off into another package; pip's wheel, which is a Debian package too, can install itself.
$(NOX): pyproject.toml
	if $(PYTHON) -c "import ensurepip" 2>/dev/null; then $(PYTHON) -m venv .venv; else \
		$(PYTHON) -m venv --without-pip .venv && .venv/bin/python -c "$(GET_PIP)"; fi
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dashboards]" nox
	touch $(NOX)
