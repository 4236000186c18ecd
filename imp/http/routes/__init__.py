"""Routes that do not generate, and the table of all of them."""
