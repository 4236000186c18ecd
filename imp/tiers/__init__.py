"""KV blocks that are kept below the pool: in a folder on disk, and in main memory."""
