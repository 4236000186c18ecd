"""Bytes to dialects: the HTTP/1.1 server and everything that speaks JSON with a client. Knows no tokens."""
