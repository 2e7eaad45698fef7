"""The chart, rendered by real Helms."""
