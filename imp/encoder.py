"""The tokenizer's library in a process of its own (beside.py). Knows files and that process, not requests.

The library holds the interpreter's lock while it builds a vocabulary, which takes from tenths of a second to seconds,
and what it hands out are objects by the hundred thousand. Over there it keeps nobody waiting. What comes from there
are a vocabulary, packed, and the tokens of each text.

The process lives as long as its encoder is referred to, and ends when its sockets do, however this process ended.
Where it has died, the next text starts it again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import signal
import socket
import weakref
from array import array
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from threading import Lock, Thread
from typing import NoReturn

from .beside import Beside, receive, send
from .text.gguf_vocab import read_gguf_vocabulary
from .text.json_vocab import read_json_vocabulary
from .text.packed import pack, unpack
from .text.vocabulary import Encoder, Vocabulary
from .weights.checkpoint import Checkpoint, InvalidModel, TokenizerFiles, open_checkpoint

log = logging.getLogger("imp.encoder")

IDS_AT_ONCE = 1 << 16  # made into numbers of Python in half a millisecond
DEAD = "the tokenizer's process has died"


class Kind(IntEnum):
    """Of what crosses between the processes."""

    LITERAL = 0  # a text, its control tokens ordinary characters
    PARSING = 1  # a text, its control tokens read
    PIECE = 2  # the exact spelling of a token
    DONE = 3  # a packed vocabulary, or the tokens that were asked for: int32
    FAILED = 4  # a pickled exception


class EncoderGone(Exception):
    """The process could not be started, or has died. The message is one sentence."""

    exit_code = 7


class EncoderProcess:
    """The encoder of one model's vocabulary (text.vocabulary.Encoder)."""

    def __init__(self, path: Path, early: Beside | None = None) -> None:
        """path: the model's. Begins to read its vocabulary, and returns. early: the process, if it was begun before,
        for whatever path; it ends with this, whoever else refers to it. Raises EncoderGone."""
        self._path = path
        if early is not None and early.path != path:
            early.end()
            early = None
        self._child = _begun(path) if early is None else early
        weakref.finalize(self, self._child.end)
        self._lock = Lock()  # held by whoever starts it again
        self._digest = b""

    def vocabulary(self) -> Vocabulary:
        """Wait for the vocabulary; called once. Raises InvalidTokenizer, UnsupportedTokenizer, InvalidModel,
        UnsupportedModel, OSError, EncoderGone."""
        packed = _said(self._child)
        self._digest = hashlib.sha256(packed).digest()
        return unpack(packed, self)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Raises UnicodeError for lone surrogates, EncoderGone where the process dies of the text."""
        return self._ask(Kind.PARSING if parse_special else Kind.LITERAL, text.encode())

    def token_id(self, piece: str) -> int | None:
        found = self._ask(Kind.PIECE, piece.encode("utf-8", "surrogatepass"))
        return found[0] if found else None

    @property
    def pid(self) -> int:
        return self._child.pid

    def _ask(self, kind: Kind, text: bytes) -> list[int]:
        child = self._child
        try:
            return _asked(child, kind, text)
        except EncoderGone:
            return _asked(self._started_again(child), kind, text)

    def _started_again(self, dead: Beside) -> Beside:
        with self._lock:
            if self._child is dead:
                log.error("the tokenizer's process has died; it is started again")
                child = _begun(self._path)
                if hashlib.sha256(_said(child)).digest() != self._digest:
                    raise EncoderGone("the tokenizer's process has died, and its model's files have changed since")
                self._child = child
            return self._child


def _begun(path: Path) -> Beside:
    try:
        return Beside(__name__, path)
    except OSError as error:
        raise EncoderGone(f"the tokenizer's process cannot be started: {error}") from error


def _said(child: Beside) -> bytearray:
    """The vocabulary, packed."""
    try:
        answer = child.first()
    except (EOFError, OSError) as error:
        raise EncoderGone(DEAD) from error
    return _checked(*answer)


def _asked(child: Beside, kind: Kind, text: bytes) -> list[int]:
    try:
        answer = child.ask(kind, text)
    except (EOFError, OSError) as error:
        raise EncoderGone(DEAD) from error
    tokens = array("i", _checked(*answer))
    ids: list[int] = []
    for start in range(0, len(tokens), IDS_AT_ONCE):
        ids += tokens[start : start + IDS_AT_ONCE].tolist()
    return ids


def _checked(kind: int, data: bytearray) -> bytearray:
    if kind == Kind.FAILED:
        raise pickle.loads(data)
    return data


# -- over there ---------------------------------------------------------------------------------------


def main(path: str, numbers: Sequence[int]) -> NoReturn:
    """The process's program: build the vocabulary, say it on the first channel, then answer on all."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to all of a service; requests are finished after them
    channels = [socket.socket(fileno=number) for number in numbers]
    try:
        vocabulary = read_vocabulary(Path(path))
    except Exception as error:
        _say(channels[0], Kind.FAILED, pickle.dumps(error))
        os._exit(1)
    _say(channels[0], Kind.DONE, pack(vocabulary))
    encoder = vocabulary.encoder
    del vocabulary
    for channel in channels[1:]:
        Thread(target=_serve, args=(channel, encoder), daemon=True).start()
    _serve(channels[0], encoder)


def _serve(channel: socket.socket, encoder: Encoder) -> NoReturn:
    while True:
        try:
            kind, text = receive(channel)
        except (EOFError, OSError):
            os._exit(0)
        try:
            ids = _found(encoder, kind, text.decode("utf-8", "surrogatepass"))
        except BaseException as error:  # a panic of the library is no Exception
            _say(channel, Kind.FAILED, pickle.dumps(RuntimeError(f"the text cannot be encoded: {error}")))
        else:
            _say(channel, Kind.DONE, array("i", ids).tobytes())


def _found(encoder: Encoder, kind: int, text: str) -> list[int]:
    if kind != Kind.PIECE:
        return encoder.encode(text, kind == Kind.PARSING)
    token = encoder.token_id(text)
    return [] if token is None else [token]


def _say(channel: socket.socket, kind: Kind, data: bytes) -> None:
    try:
        send(channel, kind, data)
    except OSError:  # who asked has gone
        os._exit(0)


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a model on disk, encoded by this process. Raises what `EncoderProcess.vocabulary` does."""
    return vocabulary_of(open_checkpoint(path))


def vocabulary_of(checkpoint: Checkpoint) -> Vocabulary:
    """As `read_vocabulary`, of a model that is open."""
    files = checkpoint.tokenizer()
    if not isinstance(files, TokenizerFiles):
        return read_gguf_vocabulary(files.metadata)
    if files.tokenizer_json is None:
        raise InvalidModel(f"{checkpoint.path} has no tokenizer.json")
    return read_json_vocabulary(files.tokenizer_json, files.config, files.special_tokens)
