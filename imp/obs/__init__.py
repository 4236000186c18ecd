"""What the server tells its operator: metrics, one record a request, the log. Never prompts, never keys."""
