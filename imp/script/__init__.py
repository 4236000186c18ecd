"""`--script FILE`: the whole server over written model output instead of weights, for whoever tests clients."""
