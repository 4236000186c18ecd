"""The tokenizer through its public door: sources, special tokens, exactly one BOS, and refusals of broken input."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from imp.text.tokenizer import InvalidTokenizer, Tokenizer, UnsupportedTokenizer

from . import corpus, toys
from .toys import BEGIN, END, TURN, P, byte_level_metadata, byte_tokenizer, sentencepiece_metadata

CONTROL = ["<unk>", "<s>", "</s>", "<|im_end|>"]


def byte_level_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=CONTROL, show_progress=False
    )
    tokenizer.train_from_iterator(corpus.texts(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def llama_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=800, limit_alphabet=90, special_tokens=[*CONTROL, *byte_tokens], show_progress=False
    )
    tokenizer.train_from_iterator(corpus.texts(), trainer)
    root = json.loads(tokenizer.to_str())  # byte tokens belong to the model, not to the added tokens
    root["added_tokens"] = [entry for entry in root["added_tokens"] if entry["content"] in CONTROL]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(root))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=CONTROL, unk_token="<unk>", initial_alphabet=["<", ">"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus.texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def wordpiece_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        corpus.texts(), trainers.WordPieceTrainer(vocab_size=600, special_tokens=control, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


JSON = {make.__name__: make for make in (byte_level_json, llama_json, unigram_json, wordpiece_json)}
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>", "pad_token": None}


@pytest.fixture(scope="module", params=sorted(JSON))
def judge(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(JSON[request.param]().to_str())  # scores as the file spells them


def ours(judge: tokenizers.Tokenizer, **config: Any) -> Tokenizer:
    return Tokenizer.from_json(judge.to_str().encode(), {**CONFIG, **config}, {"eos_token": "ignored: config has one"})


def test_json_ids_and_text_are_the_library_s(judge: tokenizers.Tokenizer) -> None:
    tokenizer = ours(judge)
    for text in corpus.texts():
        if not text.startswith("<s>") and not text.endswith("</s>"):  # the library adds a second one
            assert tokenizer.encode(text, parse_special=True) == judge.encode(text).ids
        plain = judge.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False, parse_special=True) == plain
        if not any(tokenizer.token_text(token) in text for token in tokenizer.special_ids):
            assert tokenizer.encode(text, add_special=False) == plain
            if not any(token in tokenizer.special_ids for token in plain):  # ours shows <unk> as the piece it is
                assert tokenizer.decode(plain) == judge.decode(plain, skip_special_tokens=False)


def gguf_of(name: str, root: dict[str, Any]) -> dict[str, Any]:
    """The metadata that a GGUF file has of this tokenizer.json."""
    model, vocab = root["model"], root["model"]["vocab"]
    added = {entry["content"]: 3 if entry["special"] else 4 for entry in root["added_tokens"]}
    scores = dict(vocab) if isinstance(vocab, list) else {}
    ids = {piece: id for id, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    ids |= {entry["content"]: entry["id"] for entry in root["added_tokens"]}
    pieces = sorted(ids, key=ids.__getitem__)
    assert [ids[piece] for piece in pieces] == list(range(len(pieces)))
    metadata: dict[str, Any] = {P + "token_type": [added.get(piece, 1) for piece in pieces], P + "tokens": pieces}
    if name == "byte_level_json":
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        return metadata | {P + "model": "gpt2", P + "pre": "gpt-2", P + "merges": merges, P + "eos_token_id": 2}
    if name == "unigram_json":
        ends = {P + "unknown_token_id": 0, P + "eos_token_id": 2, P + "remove_extra_whitespaces": False}
        return metadata | ends | {P + "model": "t5", P + "scores": [scores.get(piece, 0.0) for piece in pieces]}
    first = {piece: piece[2:] if piece.startswith("##") else "\u2581" + piece for piece in pieces}
    metadata[P + "tokens"] = [piece if piece in added else first[piece] for piece in pieces]
    ends = {P + "bos_token_id": 2, P + "eos_token_id": 3, P + "unknown_token_id": 1, P + "padding_token_id": 0}
    return metadata | ends | {P + "model": "bert", P + "scores": [0.0] * len(pieces)}


@pytest.mark.parametrize("name", ["byte_level_json", "unigram_json", "wordpiece_json"])
def test_g06_08_ids_of_a_gguf_file_are_those_of_the_original_tokenizer(name: str) -> None:
    """BPE, UGM and WPM; scores of SPM are other pairs than merges, so it has judges in test_vocabularies.py."""
    root = json.loads(JSON[name]().to_str())
    if name == "unigram_json":  # the file has float32 scores
        root["model"]["vocab"] = [[piece, float(np.float32(score))] for piece, score in root["model"]["vocab"]]
    judge = tokenizers.Tokenizer.from_str(json.dumps(root))
    tokenizer = Tokenizer.from_gguf(gguf_of(name, root))
    rows = ["a</s> b", "<|im_start|>user", "\t\t\t\t\t\t\tx = 1", "Smörgåsbord naïf — 42 🙂", "x\r\n\r\ny", "7" * 500]
    kept = 0
    for row in [*rows, *corpus.texts()]:
        if name == "wordpiece_json" and "\u2581" in row:
            continue  # in a GGUF file that is the mark of a word's first piece, and can be no letter
        ids = judge.encode(row, add_special_tokens=False).ids
        assert tokenizer.encode(row, add_special=False, parse_special=True) == ids, row
        if not any(token in row for token in CONTROL) and judge.decode(ids, skip_special_tokens=False) == row:
            assert tokenizer.decode(ids) == row
            kept += 1
    assert kept > (150 if name == "byte_level_json" else 10)  # WordPiece forgets case and spacing


def test_json_control_tokens_in_text_stay_text(judge: tokenizers.Tokenizer) -> None:
    tokenizer = ours(judge)
    for text in ("</s>", "a</s>b", "x <s> y", "<|im_end|>\n<|im_end|>", "</s></s>", "[SEP] [CLS]"):
        ids = tokenizer.encode(text, add_special=False)
        assert (set(ids) - {tokenizer.unk_id, tokenizer.token_id("[UNK]")}).isdisjoint(tokenizer.special_ids), text
        if any(tokenizer.token_text(token) in text for token in tokenizer.special_ids):
            parsed = tokenizer.encode(text, add_special=False, parse_special=True)
            assert any(token in tokenizer.special_ids for token in parsed)


def test_json_roles_and_names() -> None:
    tokenizer = ours(byte_level_json())
    assert [tokenizer.token_text(t) for t in (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)] == [  # type: ignore
        "<s>",
        "</s>",
        "<unk>",
    ]
    assert tokenizer.pad_id is None
    assert {tokenizer.token_text(t) for t in tokenizer.eos_ids} == {"</s>", "<|im_end|>"}
    assert {tokenizer.token_text(t) for t in tokenizer.special_ids} == set(CONTROL)
    tool = tokenizer.token_id("<tool>")
    assert tool is not None and tool in tokenizer.encode("a<tool>b")  # an ordinary added token
    assert tokenizer.token_bytes(tool) == b"<tool>"
    assert tokenizer.decode([tool, tokenizer.eos_id], skip_special=True) == "<tool>"  # type: ignore[list-item]
    assert tokenizer.token_id("no such piece") is None


def test_json_configuration_switches_what_is_added() -> None:
    plain, llama = byte_level_json(), llama_json()
    assert (ours(plain).add_bos, ours(plain, add_bos_token=True).add_bos) == (False, True)
    assert (ours(llama).add_bos, ours(llama, add_bos_token=False).add_bos) == (True, False)
    assert ours(llama, add_eos_token=True).encode("x")[-1] == 2
    assert ours(plain, add_bos_token=True).encode("<s>x", parse_special=True).count(1) == 1


# ---- exactly one BOS (G06-01) ----


@pytest.mark.parametrize("metadata", [byte_level_metadata(add_bos_token=True), sentencepiece_metadata()])
def test_g06_01_exactly_one_bos(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(metadata)
    bos = tokenizer.bos_id
    assert bos is not None and tokenizer.add_bos
    text = tokenizer.token_text(bos)
    for prompt in (f"{text}hello", f"{text} hello", text, "hello", ""):
        ids = tokenizer.encode(prompt, parse_special=True)
        assert ids[0] == bos and ids.count(bos) == 1, prompt
        assert tokenizer.encode(prompt)[0] == bos and tokenizer.encode(prompt).count(bos) == 1
    assert tokenizer.encode("hello", add_special=False, parse_special=True).count(bos) == 0


def test_g06_01_a_file_that_adds_no_bos_gets_none() -> None:
    tokenizer = byte_tokenizer(add_bos_token=False)
    assert not tokenizer.add_bos and tokenizer.bos_id == 256
    assert tokenizer.encode("ab") == [97, 98]
    assert tokenizer.encode(f"{BEGIN}ab", parse_special=True) == [256, 97, 98]


def test_eos_is_added_once_where_the_file_says_so() -> None:
    tokenizer = byte_tokenizer(add_eos_token=True)
    assert tokenizer.encode("a") == [97, 257]
    assert tokenizer.encode(f"a{END}", parse_special=True) == [97, 257]


# ---- the GGUF source ----


def test_arrays_may_be_numpy_and_strings_bytes() -> None:
    metadata = sentencepiece_metadata()
    other = dict(metadata)
    other[P + "scores"] = np.array(metadata[P + "scores"], np.float32)
    other[P + "token_type"] = np.array(metadata[P + "token_type"], np.int32)
    other[P + "tokens"] = [piece.encode() for piece in metadata[P + "tokens"]]
    other[P + "bos_token_id"] = np.uint32(1)
    first, second = Tokenizer.from_gguf(metadata), Tokenizer.from_gguf(other)
    assert first.fingerprint() == second.fingerprint()
    assert first.encode("hello world") == second.encode("hello world")


def test_fingerprint_changes_with_any_token_and_role() -> None:
    prints = {
        byte_tokenizer().fingerprint(),
        byte_tokenizer("xy").fingerprint(),
        byte_tokenizer("xz").fingerprint(),
        byte_tokenizer(token_type=[1] * 255 + [3] * 4).fingerprint(),
    }
    assert len(prints) == 4


def test_sentencepiece_follows_scores_and_falls_back_to_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    pieces = [tokenizer.token_text(token) for token in tokenizer.encode("hello worldé", add_special=False)]
    # "he" and "ll" are the best scores, "hello" is then one piece; U+00E9 is in no piece
    assert pieces == ["▁hello", "▁world", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hello worldé"), skip_special=True) == "hello worldé"
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.encode("a</s>x", add_special=False).count(2) == 0


def test_end_tokens_are_found_by_name() -> None:
    assert byte_tokenizer().eos_ids == {257, 258}
    assert byte_tokenizer().token_text(258) == TURN
    harmony = byte_tokenizer("<|end|>", "<|return|>", "<|call|>")
    assert harmony.eos_ids == {257, 258, 260, 261}  # <|end|> ends a message, not the reply


def test_html_is_not_an_end_token() -> None:
    metadata = sentencepiece_metadata()
    metadata[P + "token_type"][2] = 4  # as in Gemma's and Phi-3's vocabularies
    metadata[P + "eos_token_id"] = 1
    assert Tokenizer.from_gguf(metadata).eos_ids == {1}


def test_whole_words_never_become_control_tokens() -> None:
    metadata = byte_level_metadata("SYS", pre="llama-bpe")
    metadata[P + "token_type"][259] = 3
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("SYS", add_special=False) == [83, 89, 83]
    assert tokenizer.encode("SYS", add_special=False, parse_special=True) == [259]


def test_unigram_takes_the_likeliest_pieces_and_no_control_token() -> None:
    metadata = {
        P + "model": "t5",
        P + "tokens": ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁ab", "<", "/", "s", ">", "aba"],
        P + "scores": [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0, -4.5, -5.0, -5.0, -5.0, -5.0, -20.0],
        P + "token_type": [3, 3, 2] + [1] * 10,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("abab") == [7, 6, 1]
    assert tokenizer.encode("ab</s>", add_special=False) == [7, 8, 9, 10, 11]
    assert tokenizer.encode("ab</s>", add_special=False, parse_special=True) == [7, 1]
    assert tokenizer.decode([7, 6]) == "abab"


def test_lone_surrogates_count_as_replacement_characters() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("a\ud83db") == tokenizer.encode("a\ufffdb")


def test_ids_outside_the_vocabulary_are_refused() -> None:
    tokenizer = byte_tokenizer()
    for ids in ([259], [-1], [0, 10**9]):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.decode(ids)
    with pytest.raises(ValueError, match="outside"):
        tokenizer.token_bytes(-1)


@pytest.mark.parametrize("pre", ["llama-bpex", "", None, "kimi-k2"])
def test_an_unknown_pre_tokenizer_is_refused_not_guessed(pre: str | None) -> None:
    with pytest.raises(UnsupportedTokenizer, match="pre") as refusal:
        byte_tokenizer(pre=pre)
    assert refusal.value.exit_code == 6


KNOWN = (  # noqa: SIM905
    "default gpt-2 llama-bpe llama3 smollm tekken command-r dbrx olmo gpt-4o llama4 deepseek-llm deepseek-coder "
    "deepseek-v3 falcon falcon3 mpt starcoder refact qwen2 qwen35 stablelm2 chatglm-bpe glm4 bloom viking exaone "
    "bailingmoe seed-coder minicpm5 hunyuan grok-2 modern-bert"
).split()


@pytest.mark.parametrize("pre", KNOWN)
def test_every_known_pre_tokenizer_loses_no_character(pre: str) -> None:
    import unicodedata

    tokenizer = byte_tokenizer(pre=pre)
    for text in corpus.texts():
        decoded = tokenizer.decode(tokenizer.encode(text, add_special=False))
        assert decoded in (text, unicodedata.normalize("NFC", text))
    for word in ("a", "A", " ", "\t", "!", "7", "漢", "\n ", "Aa", "a1"):
        start = time.process_time()
        tokenizer.encode(word * (30_000 // len(word)) + "5x")
        assert time.process_time() - start < 4, (pre, word)


# ---- foreign bytes ----

JUNK = [
    None,
    True,
    -7,
    2**40,
    1.5,
    float("nan"),
    "text",
    b"\xff",
    "",
    [],
    [None],
    [1, 2],
    ["a", 3],
    [[1]],
    {},
    {"a": 1},
]


def broken(metadata: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    other = {key: list(value) if isinstance(value, list) else value for key, value in metadata.items()}
    for _ in range(draw.randrange(1, 3)):
        key = draw.choice(sorted(other))
        value = other[key]
        match draw.randrange(4):
            case 0:
                other[key] = draw.choice(JUNK)
            case 1:
                del other[key]
            case 2 if isinstance(value, list) and value:
                value[draw.randrange(len(value))] = draw.choice(JUNK)
            case _ if isinstance(value, list):
                other[key] = value[: draw.randrange(len(value) + 1)]
        if not other:
            return other
    return other


UNIGRAM = {
    P + "model": "t5",
    P + "tokens": ["<pad>", "</s>", "<unk>", "▁", "a", "b"],
    P + "scores": [0.0, 0.0, 0.0, -2.0, -3.0, -3.0],
    P + "token_type": [3, 3, 2, 1, 1, 1],
    P + "precompiled_charsmap": b"\x00\x01\x00\x00" + bytes(range(256)) * 2,
}
WORDPIECE = {P + "model": "bert", P + "tokens": ["[PAD]", "[UNK]", "▁a", "b"], P + "unknown_token_id": 1}


@pytest.mark.parametrize("metadata", [byte_level_metadata("xy"), sentencepiece_metadata(), UNIGRAM, WORDPIECE])
def test_broken_metadata_is_refused_in_one_sentence_seed_1(metadata: dict[str, Any]) -> None:
    draw = random.Random(1)
    refused = 0
    for _ in range(250):
        try:
            tokenizer = Tokenizer.from_gguf(broken(metadata, draw))
        except (InvalidTokenizer, UnsupportedTokenizer) as refusal:
            refused += 1
            assert str(refusal) and "\n" not in str(refusal)
        else:
            tokenizer.decode(tokenizer.encode("ab </s> é"))
    assert refused > 60


def test_broken_json_is_refused_in_one_sentence_seed_2() -> None:
    draw = random.Random(2)
    for make in (byte_level_json, llama_json, unigram_json, wordpiece_json):
        text = make().to_str().encode()
        for _ in range(60):
            data = bytearray(text)
            for _ in range(draw.randrange(1, 4)):
                data[draw.randrange(min(len(data), 3000))] = draw.randrange(32, 127)
            for broken_file in (bytes(data), bytes(data[: draw.randrange(len(data))])):
                try:
                    Tokenizer.from_json(broken_file, CONFIG).encode("ab </s> é")
                except (InvalidTokenizer, UnsupportedTokenizer) as refusal:
                    assert str(refusal) and "\n" not in str(refusal)


@pytest.mark.parametrize(
    "root",
    [
        [],
        {},
        {"model": []},
        {"model": {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}, "decoder": {"type": "ByteLevel"}},
        {"model": {"type": "BPE", "vocab": {}, "merges": []}, "decoder": {"type": "ByteLevel"}},
        {"model": {"type": "BPE", "vocab": 3}},
    ],
)
def test_json_that_is_no_tokenizer(root: Any) -> None:
    with pytest.raises(InvalidTokenizer):
        Tokenizer.from_json(json.dumps(root).encode(), {})
    with pytest.raises(InvalidTokenizer):
        Tokenizer.from_json(b"\xff{", {})


def test_json_of_an_unknown_kind() -> None:
    root = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    with pytest.raises(UnsupportedTokenizer, match="WordLevel"):
        Tokenizer.from_json(json.dumps(root).encode(), {})


@pytest.mark.parametrize("config", [{"bos_token": 3}, {"add_bos_token": "yes"}, {"eos_token": ["a"]}])
def test_json_with_a_wrong_configuration(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenizer):
        Tokenizer.from_json(byte_level_json().to_str().encode(), config)


def test_vocabulary_files_are_there_or_skipped() -> None:
    names = toys.vocabulary_names()
    assert not names or len(names) == 13


def test_a_text_is_decoded_in_parts_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters and what is no character are cut anywhere; bytes are tokens here."""
    tokenizers_ = [byte_tokenizer(), Tokenizer.from_gguf(sentencepiece_metadata())]
    draw = random.Random(6)
    whole = "é漢😀 a".encode() + b"\xff\xe6\xbc"
    for tokenizer in tokenizers_:
        bytes_at = [tokenizer.byte_table.index(bytes([byte])) for byte in range(256)]
        for _ in range(100):
            data = bytes(draw.choice(whole) for _ in range(draw.randrange(40))) + whole
            ids = [bytes_at[byte] for byte in data]
            expected = data.decode("utf-8", "replace")
            if tokenizer.adds_space:
                expected = expected.removeprefix(" ")
            for size in (1, 2, 7, 1000):
                monkeypatch.setattr("imp.text.tokenizer.IDS_AT_ONCE", size)
                assert tokenizer.decode(ids) == expected
