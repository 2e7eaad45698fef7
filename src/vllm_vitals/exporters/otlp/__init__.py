"""OTLP: the store pushed to any OpenTelemetry receiver through the official exporters."""
