"""Request ids as numbers: against what a C++ program with GNU's library printed for the same ids (g++, 64 bit)."""

import pytest

from lab.reference.engine.request_ids import request_number

PRINTED_BY_STOUL = {"41": 41, "12abc": 12, " 41": 41, "-1": 2**64 - 1, "+7": 7, "041": 41, "0x10": 0, "1e3": 1, "0": 0}
PRINTED_BY_HASH = {
    "hello": 2762169579135187400,
    "a": 4993892634952068459,
    "request-1": 17380440326171223808,
    "first request": 2559528738380851353,
    "x7": 2306970833679322934,
    "abcdefgh": 8664279048047335611,
    "abcdefghijklmnopq": 16399385603263873375,
    "18446744073709551616": 11359386538495099886,  # 2**64: too large for stoul, which raises
}


@pytest.mark.parametrize(("name", "number"), [*PRINTED_BY_STOUL.items(), *PRINTED_BY_HASH.items(), ("", 0)])
def test_the_number_of_an_id(name: str, number: int) -> None:
    assert request_number(name) == number


def test_the_largest_number_is_still_one() -> None:
    assert request_number(str(2**64 - 1)) == 2**64 - 1
