"""Which tokens may come next: schemas, regexes and grammars become one byte automaton, and it becomes token masks."""
