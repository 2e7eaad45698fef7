"""Dashboards drawn without Grafana, from a live Prometheus; needs the extra `preview`."""
