"""The number that the TensorRT-LLM backend derives from a request's id: its messages use it, and it distinguishes ids.

An id that starts with a number is that number, whatever follows: "41", " 041" and "41-b" are one id. Any other is the
hash that the C++ library of the backend's image (GNU, 64 bit) gives it. 0 stands for no id: "" and "0" alike.
"""

from __future__ import annotations

import re

_WORD = 2**64
_SEED = 0xC70F6907
_FACTOR = 0xC6A4A7935BD1E995
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


def request_number(name: str) -> int:
    """The number of the id `name`, in [0, 2**64).

    >>> [request_number(name) for name in ("", "41", "-1", "41-b", "hello")]
    [0, 41, 18446744073709551615, 41, 2762169579135187400]
    """
    found = _NUMBER.match(name)
    if found and int(found[2]) < _WORD:
        return int(found[1] + found[2]) % _WORD
    return _hash(name.encode()) if name else 0


def _hash(text: bytes) -> int:
    """MurmurHash64A (A. Appleby, public domain) with the seed of GNU's std::hash<std::string>."""
    value = _SEED ^ _times(len(text))
    whole = len(text) // 8 * 8
    for start in range(0, whole, 8):
        word = int.from_bytes(text[start : start + 8], "little")
        value = _times(value ^ _times(_mixed(_times(word))))
    if text[whole:]:
        value = _times(value ^ int.from_bytes(text[whole:], "little"))
    return _mixed(_times(_mixed(value)))


def _times(value: int) -> int:
    return value * _FACTOR % _WORD


def _mixed(value: int) -> int:
    return value ^ value >> 47
