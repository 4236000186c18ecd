"""The texts whose log-probabilities are kept as golden values. Written for this purpose; no third-party text."""

LONG_PROSE = " ".join(
    f"Entry {n}. The {animal} crossed the {place} at {hour} o'clock, carrying {count} letters for the {person}, "
    f"and nobody in the village asked why the bells had rung {n + 2} times that morning."
    for n, (animal, place, hour, count, person) in enumerate(
        [
            ("fox", "frozen river", 4, 17, "old miller"),
            ("heron", "stone bridge", 11, 3, "schoolteacher"),
            ("donkey", "market square", 9, 250, "lighthouse keeper"),
            ("cat", "empty orchard", 2, 1, "mayor's daughter"),
            ("goose", "railway line", 7, 42, "blind carpenter"),
            ("wolfhound", "northern pass", 12, 8, "travelling doctor"),
            ("sparrow", "cathedral roof", 5, 60, "bell ringer"),
            ("mule", "salt marsh", 10, 99, "widow of the captain"),
            ("otter", "flooded cellar", 3, 12, "apothecary"),
            ("stag", "king's road", 8, 5, "last postman"),
            ("hare", "burnt field", 6, 730, "glassblower"),
            ("raven", "quarry", 1, 21, "clockmaker"),
        ]
    )
)

LONG_CODE = (
    "\n\n".join(
        f"def {name}(values):\n"
        f'    """Return the {what} of a list of numbers, or None for an empty list."""\n'
        f"    if not values:\n        return None\n    return {expression}"
        for name, what, expression in [
            ("total", "sum", "sum(values)"),
            ("mean", "arithmetic mean", "sum(values) / len(values)"),
            ("smallest", "minimum", "min(values)"),
            ("largest", "maximum", "max(values)"),
            ("spread", "range", "max(values) - min(values)"),
            ("middle", "median", "sorted(values)[len(values) // 2]"),
        ]
    )
    + "\n\ndef product(values):\n"
)

RAW = [
    ("one-word", "Hello"),
    ("capital", "The capital of France is"),
    ("story", "Once upon a time, in a small house at the edge of the forest, there lived"),
    ("definition", "Photosynthesis is the process by which green plants"),
    ("quote", '"I never said that," she answered, closing the door. "You'),
    ("list", "Shopping list:\n- apples\n- bread\n- cheese\n-"),
    ("python", "def fibonacci(n):\n    if n < 2:\n        return n\n    return"),
    ("c", "#include <stdio.h>\n\nint main(void) {\n\tprintf("),
    ("json", '{"name": "Ada", "age": 36, "languages": ["English", "French"], "address": {"city":'),
    ("sql", "SELECT name, COUNT(*) FROM orders WHERE year = 2024 GROUP BY"),
    ("numbers", "1, 2, 3, 5, 8, 13, 21, 34,"),
    ("arithmetic", "17 + 25 = 42\n9 * 8 = 72\n1000 - 1 ="),
    ("digits", "pi = 3.14159265358979323846"),
    ("german", "Die Straße führt über den Fluss und dann durch"),
    ("french", "L'été dernier, nous avons passé nos vacances à"),
    ("spanish", "¿Dónde está la biblioteca? La biblioteca está"),
    ("russian", "Сегодня очень хорошая погода, поэтому мы"),
    ("japanese", "昔々、あるところに、おじいさんと"),
    ("arabic", "مرحبا بالعالم، هذا"),
    ("emoji", "I love 🍕 and 🎉! My family 👨‍👩‍👧 thinks naïve café façades are"),
    ("whitespace", "a\n\n\n  b\t\tc   d \r\n e"),
    ("repeat", "the cat sat on the mat. " * 12),
    ("long-code", LONG_CODE),
    ("long-prose", LONG_PROSE),
]

CHATS = [
    ("chat-greeting", [{"role": "user", "content": "Hi! Who are you?"}]),
    (
        "chat-system",
        [
            {"role": "system", "content": "You are a terse assistant that answers in one word."},
            {"role": "user", "content": "What colour is a clear daytime sky?"},
        ],
    ),
    (
        "chat-turns",
        [
            {"role": "user", "content": "Name three primary colours."},
            {"role": "assistant", "content": "Red, yellow and blue."},
            {"role": "user", "content": "And which two of them make green?"},
        ],
    ),
    ("chat-code", [{"role": "user", "content": "Write a Python function that reverses a string."}]),
    ("chat-unicode", [{"role": "user", "content": "Übersetze bitte „Guten Morgen 🌞“ ins Englische."}]),
    ("chat-long", [{"role": "user", "content": "Summarise this in one sentence:\n\n" + LONG_PROSE[:1200]}]),
]

EVERY_EIGHTH = ("story", "json", "german", "long-code", "chat-turns", "chat-long")  # these also get inner positions
GEMMA = (
    "one-word", "capital", "story", "python", "json", "numbers", "german", "russian", "japanese", "emoji", "whitespace",
    "long-code", "long-prose", "chat-turns",
)  # fmt: skip
