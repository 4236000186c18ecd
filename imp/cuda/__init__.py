"""Ops on NVIDIA GPUs: kernels compiled by NVRTC and Numba, recorded programs replayed as CUDA graphs."""
