"""Which tokens may come next: schemas, regexes and grammars become one byte automaton, and it becomes token masks.

charset, unicode_sets     sets of characters, and the bytes that spell them
expr                      expressions over characters: what regexes and grammars are read into
regex, gbnf, lark, scan   the notations
positions, dfa, language  regular languages and their algebra; texts writes them as nodes
normal, grammar           rules without empty texts and left recursion, as nodes
schema/                   JSON Schema
compile, tools, free      whole outputs: a pattern, a choice; tool calls; text that is free up to a marker
nfa, reference            the automaton all of them write, and what it means
check, __main__           cases judged on the command line: python -m imp.constrain check
"""
