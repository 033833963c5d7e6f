"""Lines of answers at a terminal: broken between words, whatever pieces the text arrives in."""

from __future__ import annotations

import random
import textwrap

import pytest

from cortiq.cli.wrapping import LineBreaker, width_of

WORDS = "the sky is blue because molecules of air scatter short waves of light more than long ones"


def broken(pieces, columns):
    breaker = LineBreaker(columns)
    return "".join([*map(breaker.add, pieces), breaker.finish()])


@pytest.mark.parametrize("columns", [20, 33, 80])
def test_lines_are_those_of_textwrap_whatever_the_pieces(columns):
    expected = "\n".join(textwrap.wrap(WORDS, columns))
    assert broken([WORDS], columns) == broken(WORDS, columns) == expected
    cuts = random.Random(columns)
    for _ in range(5):
        ends = sorted(cuts.sample(range(len(WORDS)), 9))
        pieces = [WORDS[a:b] for a, b in zip([0, *ends], [*ends, len(WORDS)], strict=True)]
        assert broken(pieces, columns) == expected


def test_code_long_words_and_blank_lines_stay_as_they_are():
    code = "```python\n" + "x = 1 + 2 + 3 + 4 + 5 + 6\n" * 2 + "```\n\n"
    assert broken(code, 20) == code
    word = "w" * 65
    assert broken(f"a {word} b\n", 20).replace("\n", " ").split() == ["a", word, "b"]
    assert broken("  a\n\n  b", 20) == "  a\n\n  b"


def test_wide_characters_take_two_columns():
    assert width_of("漢e\u0301") == 3
    assert broken("漢" * 25, 20) == "漢" * 25  # the terminal breaks it: after 10, 10 and 5
    assert broken("漢" * 25 + " abcde abcde", 20) == "漢" * 25 + " abcde\nabcde"


def test_no_character_is_lost_or_added_but_line_breaks():
    letters = random.Random(7)
    for _ in range(200):
        text = "".join(letters.choices("ab  \n漢`", k=60))
        assert broken(text, 20).split() == "".join(broken([text], 20)).split()
        assert "".join(broken(text, 20).split()) == "".join(text.split())
