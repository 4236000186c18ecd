"""imp-server: a single-process LLM inference server."""

__version__ = "0.1.0"
