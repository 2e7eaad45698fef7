"""What is shown of the metrics: dashboards, recording and alerting rules, and the PromQL that both use."""
