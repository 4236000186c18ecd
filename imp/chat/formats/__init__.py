"""How models speak: what marks reasoning and tool calls in their text. One file a language."""
