"""What becomes of a good file: bytes flipped, ends cut, stretches doubled, values of odd kinds, depth, length, tags."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

MOST_BYTES = 2_000_000
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, "", "NaN", "inf",
    "\ud800", "x" * 500, [], {}, [[]], [None], {"a": {}}, [1e300, -1e300], 2**63, 0.5, 2**31, 10**9, 10**7, "\0",
    "9" * 5000, 1e-300,
)  # fmt: skip
TOKENS = (
    *(
        "0",
        "-1",
        "1e308",
        "1e-308",
        "9" * 400,
        "9" * 5000,
        "2147483648",
        "-9223372036854775809",
        "1e309",
        "nan",
        ".inf",
    ),
    *(
        "inf",
        "Infinity",
        "true",
        "yes",
        "~",
        "null",
        "''",
        '""',
        '"',
        "'",
        "[]",
        "{}",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\n",
    ),
    *(
        "&a [1]",
        "*a",
        "!!int abc",
        "!!python/object/apply:os.system [id]",
        "<<: *a",
        "<<: {a: 1}",
        "? [a]",
        "---",
        "...",
    ),
    *(
        "2001-99-99",
        "12:30:00",
        "0x" + "f" * 40,
        "0o777",
        "1_000",
        "²",
        "٣",
        "=1+1",
        "%d%s%n",
        "$(id)",
        "../../etc/passwd",
    ),
    *(
        "\0",
        "\x1b[2J",
        "\u202e",
        "\ufeff",
        "\u2028",
        "\x85",
        "é",
        "👩‍💻",
        "\\ud800",
        "\\u0000",
        "p95:1s",
        "p999:1ms",
        "1e9",
    ),
    *("1000000000", "10000000", "99999999999", "-0", "00", "0.1", "1e-9", "-1e-9", "#", "|", ">", "%TAG ! x", "\t"),
)
_NUMBERS = re.compile(rb"[0-9]+(?:\.[0-9]+)?")
_WORDS = re.compile(rb"[A-Za-z0-9_.+-]+")


def flip(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def splice(raw: bytes, rng: random.Random) -> bytes:
    """A stretch repeated or left out: keys twice, cells too many or too few."""
    start = rng.randrange(len(raw))
    end = min(len(raw), start + rng.randint(1, 200))
    return raw[:end] + raw[start:] if rng.random() < 0.5 else raw[:start] + raw[end:]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in pairs] + [place for _, inner in pairs for place in places(inner)]


def swap(raw: bytes, rng: random.Random) -> bytes:
    """Values of a JSON document taken out, or changed for odd ones; in CSV, cells."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        cells = raw.split(b",")
        cells[rng.randrange(len(cells))] = str(rng.choice(ODD)).encode("utf-8", "replace")
        return b",".join(cells)
    for _ in range(rng.randint(1, 3)):
        found = places(document)
        if not found:
            break
        container, key = rng.choice(found)
        if rng.random() < 0.3:
            del container[key]
        else:
            container[key] = deepcopy(rng.choice(ODD))
    return json.dumps(document).encode()


def word(raw: bytes, rng: random.Random) -> bytes:
    """A word or number changed for a hostile one."""
    found = list(_WORDS.finditer(raw[:100_000]))
    if not found:
        return insert(raw, rng)
    place = rng.choice(found)
    return raw[: place.start()] + _token(rng) + raw[place.end() :]


def number(raw: bytes, rng: random.Random) -> bytes:
    """A number changed for another, of any size."""
    found = list(_NUMBERS.finditer(raw[:100_000]))
    if not found:
        return insert(raw, rng)
    place = rng.choice(found)
    other = rng.choice((0.0, 1.0, 2.0, rng.uniform(0, 100), 10 ** rng.uniform(-12, 15)))
    written = str(round(other)) if rng.random() < 0.6 else f"{other:.6g}"
    return raw[: place.start()] + written.encode() + raw[place.end() :]


def insert(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(raw))
    return raw[:at] + _token(rng) + raw[at:]


def _token(rng: random.Random) -> bytes:
    return rng.choice((*TOKENS, "\ud800")).encode("utf-8", "surrogatepass")


def repeat(raw: bytes, rng: random.Random) -> bytes:
    """A line, or all of it, many times."""
    lines = raw.split(b"\n")
    times = round(10 ** rng.uniform(0, 4.3))
    if rng.random() < 0.3:
        return (raw + b"\n") * min(times, 1 + MOST_BYTES // (len(raw) + 1))
    at = rng.randrange(len(lines))
    return b"\n".join([*lines[:at], *[lines[at]] * min(times, 1 + MOST_BYTES // (len(lines[at]) + 1)), *lines[at:]])


def lengthen(raw: bytes, rng: random.Random) -> bytes:
    """One long run of a character."""
    at = rng.randint(0, len(raw))
    return raw[:at] + rng.choice((b"x", b"9", b",", b" ", b"#", b'"', b"\\", b"-", b"?")) * round(
        10 ** rng.uniform(2, 6)
    ) + raw[at:]  # fmt: skip


def nest(raw: bytes, rng: random.Random) -> bytes:
    """Lists or mappings in each other."""
    opening, closing = rng.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b"{a: ", b"}"), (b"- ", b""), (b"? ", b""), (b"a { ", b"}"))
    )
    depth, at = round(10 ** rng.uniform(0.5, 5)), rng.randint(0, len(raw))
    return raw[:at] + opening * depth + closing * (depth if rng.random() < 0.5 else 0) + raw[at:]


def replaced(raw: bytes, rng: random.Random) -> bytes:
    """Something else altogether."""
    return rng.choice(
        (b"", b"\n", b"[]", b"{}", b"null", b"0", b"PK\x03\x04", b"\xff\xfe\x00", b"\x00" * 100, rng.randbytes(200))
    )


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flip, cut, splice, swap, swap, swap, word, word, word, word, number, number, number, number, insert),
    *(repeat, lengthen, nest, replaced),
)


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """`raw` after one to three mutations, of at most `MOST_BYTES`."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        raw = rng.choice(MUTATIONS)(raw or b" ", rng)[:MOST_BYTES]
    return raw
