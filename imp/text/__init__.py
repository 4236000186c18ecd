"""Text and tokens: the tokenizer of any model, and incremental decoding. Knows no sockets and no arrays of a model."""
