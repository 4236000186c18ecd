"""The forward pass, written once against Ops; the NumPy reference; sampling; the runner."""
