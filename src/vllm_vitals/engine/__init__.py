"""The state of each engine between its steps, and the metrics that follow from it."""
