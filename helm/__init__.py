"""The Helm chart, and in `generate/` what makes its generated files: `python -m helm.generate`, part of `make docs`."""
