"""The tokenizer's library in a process of its own. Knows files and sockets to that process, not requests.

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
import struct
import subprocess
import sys
import weakref
from array import array
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import NoReturn

from .text.gguf_vocab import read_gguf_vocabulary
from .text.json_vocab import read_json_vocabulary
from .text.packed import pack, unpack
from .text.vocabulary import Encoder, Vocabulary
from .weights.checkpoint import Checkpoint, InvalidModel, TokenizerFiles, open_checkpoint

log = logging.getLogger("imp.encoder")

CHANNELS = 5  # two threads prepare, two compile, the engine's looks ahead; whoever comes beyond these waits for one
IDS_AT_ONCE = 1 << 16  # made into numbers of Python in half a millisecond
DEAD = "the tokenizer's process has died"

_HEAD = struct.Struct("<BQ")  # a Kind, and how many bytes follow


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

    def __init__(self, path: Path) -> None:
        """path: the model's. Begins to read its vocabulary, and returns. Raises EncoderGone."""
        self._path = path
        self._child = _Child(path)
        self._lock = Lock()  # held by whoever starts it again
        self._digest = b""

    def vocabulary(self) -> Vocabulary:
        """Wait for the vocabulary; called once. Raises InvalidTokenizer, UnsupportedTokenizer, InvalidModel,
        UnsupportedModel, OSError, EncoderGone."""
        packed = self._child.vocabulary()
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
            return child.ask(kind, text)
        except EncoderGone:
            return self._started_again(child).ask(kind, text)

    def _started_again(self, dead: _Child) -> _Child:
        with self._lock:
            if self._child is dead:
                log.error("the tokenizer's process has died; it is started again")
                child = _Child(self._path)
                if hashlib.sha256(child.vocabulary()).digest() != self._digest:
                    raise EncoderGone("the tokenizer's process has died, and its model's files have changed since")
                self._child = child
            return self._child


class _Child:
    """One process and the channels to it; it is killed when this is no longer referred to."""

    def __init__(self, path: Path) -> None:
        pairs = [socket.socketpair() for _ in range(CHANNELS)]
        here, there = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        numbers = [each.fileno() for each in there]
        program = (
            "import os, sys\n"
            f"sys.path[:] = {sys.path!r}\n"
            # which the libraries read when they are loaded: whoever is asked does the work, on one thread
            "os.putenv('TOKENIZERS_PARALLELISM', 'false'); os.putenv('OPENBLAS_NUM_THREADS', '1')\n"
            f"from imp.encoder import main; main({str(path)!r}, {numbers})"
        )
        command = [sys.executable, "-I", "-c", program]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
                start_new_session=True,  # an interrupt from the terminal is not for it
            )
        except OSError as error:
            raise EncoderGone(f"the tokenizer's process cannot be started: {error}") from error
        finally:
            for each in there:
                each.close()
        weakref.finalize(self, _end, process, here)
        self.pid = process.pid
        self._first = here[0]
        self._free: SimpleQueue[socket.socket] = SimpleQueue()
        for each in here:
            self._free.put(each)

    def vocabulary(self) -> bytearray:
        """The first thing it says, before anything is asked."""
        return _answer(self._first)

    def ask(self, kind: Kind, text: bytes) -> list[int]:
        channel = self._free.get()
        try:
            _send(channel, kind, text)
            answer = _answer(channel)
        except OSError as error:
            raise EncoderGone(DEAD) from error
        finally:
            self._free.put(channel)
        tokens = array("i", answer)
        ids: list[int] = []
        for start in range(0, len(tokens), IDS_AT_ONCE):
            ids += tokens[start : start + IDS_AT_ONCE].tolist()
        return ids


def _answer(channel: socket.socket) -> bytearray:
    try:
        kind, data = _receive(channel)
    except EOFError as error:
        raise EncoderGone(DEAD) from error
    if kind is Kind.FAILED:
        raise pickle.loads(data)
    return data


def _end(process: subprocess.Popen[bytes], channels: Sequence[socket.socket]) -> None:
    for each in channels:
        each.close()
    process.kill()  # it has nothing to finish
    try:  # whoever drops the last reference may be the event loop
        Thread(target=process.wait, name="reaper", daemon=True).start()
    except RuntimeError:  # there are no new threads while the interpreter ends
        process.wait()


def _send(channel: socket.socket, kind: Kind, data: bytes) -> None:
    channel.sendall(_HEAD.pack(kind, len(data)))
    channel.sendall(data)


def _receive(channel: socket.socket) -> tuple[Kind, bytearray]:
    """EOFError where the other side has gone."""
    kind, size = _HEAD.unpack(_exactly(channel, _HEAD.size))
    return Kind(kind), _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = channel.recv_into(left)
        if not count:
            raise EOFError
        left = left[count:]
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
            kind, text = _receive(channel)
        except (EOFError, OSError):
            os._exit(0)
        try:
            ids = _found(encoder, kind, text.decode("utf-8", "surrogatepass"))
        except BaseException as error:  # a panic of the library is no Exception
            _say(channel, Kind.FAILED, pickle.dumps(RuntimeError(f"the text cannot be encoded: {error}")))
        else:
            _say(channel, Kind.DONE, array("i", ids).tobytes())


def _found(encoder: Encoder, kind: Kind, text: str) -> list[int]:
    if kind is not Kind.PIECE:
        return encoder.encode(text, kind is Kind.PARSING)
    token = encoder.token_id(text)
    return [] if token is None else [token]


def _say(channel: socket.socket, kind: Kind, data: bytes) -> None:
    try:
        _send(channel, kind, data)
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
