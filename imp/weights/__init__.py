"""Models on disk: GGUF and safetensors. `checkpoint` is the door; nothing above it knows one format from another."""
