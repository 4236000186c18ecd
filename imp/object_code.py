"""Object code brought into this process without a linker: files of ELF for x86-64, as LLVM writes them for kernels.

Code made for the large model names everything by 64 bit addresses, so there is one kind of relocation. What is not of
this kind is refused, and for LLVM's own loader. Source: System V ABI, and its supplement for AMD64.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import dataclass
from functools import cache

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_WORD = struct.Struct("<Q")

_RELOCATABLE, _AMD64 = 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BITS, _UNWINDING = 2, 4, 8, 0x70000001  # types of sections
_ALLOCATED, _EXECUTABLE = 2, 4  # flags of sections
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # instead of a section's number
_ABSOLUTE_64 = 1  # the relocation

# Of Numba's runtime: reached only where a kernel raises, or gives memory back that it has taken. None raises; one that
# takes memory names what allocates, too, which is not found here, so it is refused.
_NEVER = ("numba_", "NRT_Free", "NRT_MemInfo_call_dtor")


class Unknown(Exception):
    """This is no object code that can be loaded here."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Code in memory, which stays as long as this does. symbols: addresses by name."""

    symbols: dict[str, int]
    memory: mmap.mmap


@dataclass(slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int  # in the file
    size: int
    link: int
    info: int
    alignment: int
    place: int = -1  # in memory; -1: not there


def load(code: bytes) -> Loaded:
    """Raises Unknown."""
    sections = _sections(code)
    table = next((each for each in sections if each.kind == _SYMBOLS), None)
    if table is None:
        raise Unknown("there are no symbols")
    symbols = [_SYMBOL.unpack_from(code, at) for at in range(table.offset, table.offset + table.size, _SYMBOL.size)]
    writable, size = _placed(sections)
    common: dict[int, int] = {}
    for i, (_, _, _, section, alignment, bytes_) in enumerate(symbols):
        if section == _COMMON:
            common[i] = size = _aligned(size, alignment)
            size += bytes_
    memory = mmap.mmap(-1, _aligned(max(size, 1), mmap.PAGESIZE))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for each in sections:
        if each.place >= 0 and each.kind != _NO_BITS:
            memory[each.place : each.place + each.size] = code[each.offset : each.offset + each.size]
    names = sections[table.link].offset
    addresses: list[int | None] = []
    for i, (name, _, _, section, value, _) in enumerate(symbols):
        addresses.append(_address(_text(code, names + name), section, value, base, sections, common.get(i)))
    _relocate(code, memory, sections, addresses)
    _protect(base, writable)
    found = {_text(code, names + symbol[0]): address for symbol, address in zip(symbols, addresses, strict=True)}
    return Loaded({name: address for name, address in found.items() if name and address is not None}, memory)


def _sections(code: bytes) -> list[_Section]:
    if len(code) < _HEADER.size or code[:6] != b"\x7fELF\x02\x01":
        raise Unknown("this is not 64 bit little-endian ELF")
    _, kind, machine, _, _, _, start, _, _, _, _, size, count, names = _HEADER.unpack_from(code)
    if (kind, machine, size) != (_RELOCATABLE, _AMD64, _SECTION.size):
        raise Unknown("this is no object code for x86-64")
    raw = [_SECTION.unpack_from(code, start + i * size) for i in range(count)]
    return [
        _Section(_text(code, raw[names][4] + name), kind, flags, offset, size_, link, info, max(alignment, 1))
        for name, kind, flags, _, offset, size_, link, info, alignment, _ in raw
    ]


def _placed(sections: list[_Section]) -> tuple[int, int]:
    """Gives every section that is to be in memory its place, code first. Returns where what is no code begins, and the
    bytes of all. What unwinds stacks is left out: nothing is thrown through a kernel."""
    wanted = [each for each in sections if each.flags & _ALLOCATED]
    wanted = [each for each in wanted if each.kind != _UNWINDING and each.name != ".eh_frame"]
    size = 0
    for each in (each for each in wanted if each.flags & _EXECUTABLE):
        each.place = size = _aligned(size, each.alignment)
        size += each.size
    writable = size = _aligned(size, mmap.PAGESIZE)
    for each in (each for each in wanted if not each.flags & _EXECUTABLE):
        each.place = size = _aligned(size, each.alignment)
        size += each.size
    return writable, size


def _address(
    name: str, section: int, value: int, base: int, sections: list[_Section], common: int | None
) -> int | None:
    """Of a symbol; None: it is in a section that is not in memory."""
    if section == _UNDEFINED:
        return _elsewhere(name) if name else 0
    if section == _ABSOLUTE:
        return value
    if common is not None:
        return base + common
    place = sections[section].place
    return None if place < 0 else base + place + value


@cache
def _elsewhere(name: str) -> int:
    """The address of what this process has under a name. Raises Unknown."""
    try:
        found = ctypes.c_char.in_dll(ctypes.CDLL(None), "abort" if name.startswith(_NEVER) else name)
    except ValueError as error:
        raise Unknown(f"nothing here is called {name}") from error
    return ctypes.addressof(found)


def _relocate(code: bytes, memory: mmap.mmap, sections: list[_Section], addresses: list[int | None]) -> None:
    for each in sections:
        if each.kind != _RELOCATIONS or sections[each.info].place < 0:
            continue
        place = sections[each.info].place
        for at in range(each.offset, each.offset + each.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(code, at)
            address = addresses[info >> 32]
            if info & 0xFFFFFFFF != _ABSOLUTE_64 or address is None:
                raise Unknown(f"relocation {info:x} is not known here")
            _WORD.pack_into(memory, place + offset, (address + addend) % 2**64)


def _protect(base: int, code_bytes: int) -> None:
    """What is code may be run from now on, and not written."""
    if not code_bytes:
        return
    protect = ctypes.CDLL(None).mprotect
    if protect(ctypes.c_void_p(base), ctypes.c_size_t(code_bytes), mmap.PROT_READ | mmap.PROT_EXEC):
        raise Unknown("memory may not be made executable here")


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()
