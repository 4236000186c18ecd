"""The texts tokenizers are compared on: written here, or drawn by a fixed seed. Imports nothing of the project."""

from __future__ import annotations

import random

HAND_WRITTEN = [
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll go; he'd rather not, isn't it? IT'S, WE'LL, I'D.",
    "  two leading spaces",
    "trailing spaces   ",
    "inner     runs  of   spaces",
    "\t\t\t\t\t\t\tx = 1",
    "tab\tbetween\twords \t mixed",
    "x\r\n\r\ny",
    "line one\nline two\n\n\nline five\n",
    "\n",
    "\n\n\n\n \n \n\t\n",
    " ",
    "   ",
    " " * 17,
    "\u00a0non\u00a0breaking\u2003em\u3000ideographic",
    "Smörgåsbord naïf — 42 🙂",
    "nai\u0308ve cafe\u0301 A\u030angstro\u0308m",
    "naïve café Ångström ﬁ ﬂ Ⅷ ² ½",
    "Привет, мир! Как дела?",
    "你好，世界。今天天气很好！",
    "日本語のテキスト、カタカナとひらがな。",
    "안녕하세요 세계",
    "नमस्ते दुनिया क्षत्रिय",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "مرحبا بالعالم، كيف حالك؟",
    "שלום עולם",
    "გამარჯობა ᲒᲐᲛᲐᲠᲯᲝᲑᲐ Ꭰꭰ",
    "👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 🦊 ok",
    "🦙" * 5,
    "mixed日本語and English和中文ДА",
    "0 1 12 123 1234 12345 123456 1234567",
    "3.14159e-10 1,000,000.00 0xDEADBEEF 2024-02-29T12:34:56Z",
    "7" * 500,
    "١٢٣ ४५६ ⅓ ⑩",
    "a" * 300,
    "ab" * 100,
    "!" * 64,
    "-" * 79,
    "=" * 33 + "\n",
    "...!!!???;;;:::",
    "def f(x):\n    return {k: v ** 2 for k, v in x.items() if v >= 0}  # squares\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }\n\treturn a;\n",
    '<html>\n  <body class="x">&nbsp;</body>\n</html>',
    "SELECT * FROM t WHERE a = 'b''c' AND d <> 1;",
    '{"key": [1, 2.5, null, true], "nested": {"a\\n": "\\u00e9"}}',
    "https://example.com/path?query=1&other=%20#fragment user@example.com",
    "C:\\Users\\name\\file.txt /usr/local/bin ~/.config",
    "$100 €50 £30 ¥20 50% #tag @name ^caret `code` ~tilde |pipe|",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "\x00\x01\x02\x1f\x7f",
    "bell\x07 escape\x1b[31mred\x1b[0m",
    "\ufffd replacement \ufffe\uffff",
    "zero\u200bwidth\u200djoiner\u200c \ufeffbom \u202eoverride",
    "ſ 'ſ K \u212a ẞ ß İ ı",
    "▁already▁marked ▁▁ _ __",
    "<0x0A> <0xFF> <0x41>",
    "Ġbyte Ċlevel Āletters ł",
    "a</s> b",
    "<s>hello</s>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|> <|eot_id|> <end_of_turn> <bos> <eos> <unk> <pad>",
    "[INST] x [/INST] [CLS] [SEP] [UNK] [MASK] [PAD]",
    "<|system|> x <|end|> y <|assistant|>",
    "<fim_prefix>a<fim_suffix>b<fim_middle>",
    "xaaaa aaaaab baaaa aabaab zzzzzzzzzzz",
    "   x    y     z      w       5",
    " 5  5   5    5",
    "The year 1999, the 3rd of May; 10:30pm -- $5.00!",
    "e.g. i.e. etc. U.S.A. Ph.D. Mr. O'Neill's",
    "“curly quotes” ‘single’ «guillemets» „low“",
    "∑∫√∞≠≤≥±×÷ α+β=γ ∀x∈ℝ",
    "𝕳𝖊𝖑𝖑𝖔 𝓦𝓸𝓻𝓵𝓭 ｆｕｌｌｗｉｄｔｈ",
    "",
]

_ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz      ",
    "aA1 \n\t.,'-_",
    "0123456789 ,.",
    "éèüñçßøåÄÖ aei\u0301\u0308",
    "абвгде ёжз АБВ",
    "漢字仮名交じり文、。 ",
    "{}[]()<>/\\|\"'`=+-*&^%$#@!~?:; \n\tif",
    "🙂🦊👍🏽👨\u200d👩 x",
    " \t\n\r\u00a0\u2003",
    "aab ",
]


def texts() -> list[str]:
    """HAND_WRITTEN, then 150 drawn texts of up to 60 characters."""
    draw = random.Random(20240607)
    drawn = []
    for number in range(150):
        alphabet = _ALPHABETS[number % len(_ALPHABETS)]
        if number >= 100:
            alphabet += _ALPHABETS[draw.randrange(len(_ALPHABETS))]
        drawn.append("".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 60))))
    return HAND_WRITTEN + drawn


# Rendered prompts, tokenised with control tokens recognised.
PROMPTS = {
    "smollm2": [
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|> <|im_end|>  <|endoftext|>a<|endoftext|>",
        "<|im_start|>system\nYou are <|im_start|><|im_start|>x",
        "<repo_name>a<file_sep>b",
    ],
    "gemma3": [
        "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n",
        "<start_of_turn> a <end_of_turn>  b<eos>",
        "<bos> x<unused5>y</s>z",
    ],
    "llama-spm": ["<s>[INST] hi [/INST] there </s><s>[INST] x", "a</s> b", "<s> <s>  x"],
    "phi-3": ["<|user|>\nhi<|end|>\n<|assistant|>\n", "<s><|user|> a  <|end|>\n\n b"],
    "llama-bpe": ["<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"],
    "qwen2": ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"],
}
