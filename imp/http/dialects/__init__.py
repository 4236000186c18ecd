"""How clients speak. Thin: JSON in, our requests out; our events in, their frames out."""
