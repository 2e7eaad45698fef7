"""Service level objectives: what is limited, and how finished requests are judged."""
