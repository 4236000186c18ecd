"""Writes golden.json: what llama.cpp and transformers make of corpus.py. Run by hand, where both are at hand.

    python tests/text/make_golden.py llama BINDINGS LIBRARY NAME=FILE.gguf ...
    python tests/text/make_golden.py transformers NAME=FILE.gguf ...

BINDINGS: the directory of the Python package llama_cpp (only its ctypes declarations are used); LIBRARY: the directory
with libllama.so. Each run adds its judge to golden.json. Ids are kept in full for the NAMEs in FULL, as CRC-32 of
their decimal spelling otherwise.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import corpus

GOLDEN = Path(__file__).with_name("golden.json")
FULL = ("smollm2", "gemma3")
Encode = Callable[[str, bool], list[int]]  # (text, parse_special) -> ids, nothing added


def llama_encoder(bindings: str, library: str) -> Callable[[str], Encode]:
    os.environ["LLAMA_CPP_LIB_PATH"] = library
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(Path(bindings) / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    api = importlib.import_module("llama_cpp.llama_cpp")
    api.llama_backend_init()

    def load(path: str) -> Encode:
        params = api.llama_model_default_params()
        params.vocab_only = True
        model = api.llama_model_load_from_file(path.encode(), params)
        vocab = api.llama_model_get_vocab(model)

        def encode(text: str, parse_special: bool) -> list[int]:
            data = text.encode()
            room = len(data) * 2 + 16
            ids = (ctypes.c_int32 * room)()
            count = api.llama_tokenize(vocab, data, len(data), ids, room, False, parse_special)
            assert count >= 0, text
            return list(ids[:count])

        return encode

    return load


def transformers_encoder(path: str) -> Encode:
    from transformers import AutoTokenizer

    file = Path(path)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)

    def encode(text: str, parse_special: bool) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not parse_special)

    return encode


def crc(ids: list[int]) -> int:
    return zlib.crc32(" ".join(map(str, ids)).encode())


def main() -> None:
    judge, *rest = sys.argv[1:]
    if judge == "llama":
        load, rest = llama_encoder(rest[0], rest[1]), rest[2:]
    else:
        load = transformers_encoder
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for pair in rest:
        name, _, path = pair.partition("=")
        encode = load(path)
        ids = [encode(text, False) for text in corpus.texts()]
        entry = {"texts": ids if name in FULL else [crc(each) for each in ids]}
        if name in corpus.PROMPTS:
            entry["prompts"] = [encode(text, True) for text in corpus.PROMPTS[name]]
        golden.setdefault(judge, {})[name] = entry
    lines = [
        f"{json.dumps(judge)}: {{\n"
        + ",\n".join(
            f"{json.dumps(n)}: {json.dumps(e, separators=(',', ':'))}" for n, e in sorted(golden[judge].items())
        )
        + "\n}"
        for judge in sorted(golden)
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
