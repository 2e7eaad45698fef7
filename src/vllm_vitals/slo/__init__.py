"""Service level objectives (SLOs): which finished requests met their limits, and why the others did not."""
