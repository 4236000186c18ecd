"""The CPU backend. Its only door is `ops.CpuBackend`."""
