"""Benchmarks: `make bench` for figures of this machine, bench.peer against llama.cpp, bench.soak for a long run."""
