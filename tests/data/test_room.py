"""Errors over a file: those that speak of the file become a sentence, those of the system pass."""

from __future__ import annotations

import errno

import pytest

from trisect.data.room import reading
from trisect.errors import DataError


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_errors_of_the_system_pass(number: int) -> None:
    with pytest.raises(OSError, match="not now") as caught, reading("a file"):
        raise OSError(number, "not now")
    assert caught.value.errno == number


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), ValueError("no"), OSError("no")])
def test_others_are_a_sentence(error: Exception) -> None:
    with pytest.raises(DataError, match=r"a file cannot be read \(.*no\); give another file\."), reading("a file"):
        raise error
