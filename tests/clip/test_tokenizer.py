"""Words to ids with a small tokenizer that is made as CLIP's is."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from clip_helpers import SMALL, VOCAB, small_tokenizer, write_tokenizer
from tokenizers import models

from fedtailor.base.errors import UserError
from fedtailor.clip.model import Shape
from fedtailor.clip.tokenizer import Tokenizer

SHAPE = Shape(**{**vars(SMALL), "vocab": VOCAB})
NAMES = ("cat", "aquarium_fish", "maple tree", "sweet pepper", "T-shirt/top", "Boeing 707-320", "lawn mower")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path)
    return Tokenizer.open(tmp_path, SHAPE)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.inner.id_to_token(i) for i in tokenizer(text)]


def test_words(tokenizer: Tokenizer) -> None:
    """Broken: case, punctuation, digits or spaces are cut in another way than CLIP was trained with."""
    assert words(tokenizer, "A photo of a  Cat.") == ["a</w>", "photo</w>", "of</w>", "a</w>", "cat</w>", ".</w>"]
    assert words(tokenizer, "707-3") == ["7</w>", "0</w>", "7</w>", "-</w>", "3</w>"]
    assert words(tokenizer, "cats") == ["ca", "t", "s</w>"]  # "cat</w>" ends a word, this one goes on


@pytest.mark.parametrize("name", NAMES)
def test_no_markers_and_a_name_stands_alone(tokenizer: Tokenizer, name: str) -> None:
    """Broken: start and end markers are added twice, or a name's ids depend on the words before it."""
    ids = tokenizer(name)
    assert ids
    assert not {tokenizer.sos, tokenizer.eot} & set(ids)
    assert tokenizer(f"a photo of a {name}.") == [*tokenizer("a photo of a"), *ids, *tokenizer(".")]


def test_markers(tokenizer: Tokenizer) -> None:
    """Broken: end-of-text is not the largest id, by which the textbook path finds it."""
    assert (tokenizer.sos, tokenizer.eot) == (VOCAB - 2, VOCAB - 1)


def test_longest_text(tokenizer: Tokenizer) -> None:
    """Broken: text is cut without a word, or text that just fits is refused."""
    assert len(tokenizer("cat " * 75)) == 75
    with pytest.raises(UserError, match=r"78 tokens long, this text tower holds 77; shorten the class name"):
        tokenizer("cat " * 76)


def test_larger_than_the_tower(tmp_path: Path) -> None:
    """Broken: a tokenizer of another checkpoint, whose ids the tower has no rows for."""
    write_tokenizer(tmp_path)
    with pytest.raises(UserError, match=f"{VOCAB} tokens, the text tower only {VOCAB - 1}"):
        Tokenizer.open(tmp_path, Shape(**{**vars(SHAPE), "vocab": VOCAB - 1}))


def test_not_of_a_clip(tmp_path: Path) -> None:
    """Broken: a tokenizer without CLIP's two markers is taken."""
    tokenizers.Tokenizer(models.WordLevel({"cat": 0}, unk_token="cat")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="not a CLIP tokenizer"):
        Tokenizer.open(tmp_path, SHAPE)


def test_survives_its_file(tmp_path: Path) -> None:
    """Broken: the written tokenizer cuts words otherwise than the one in memory."""
    write_tokenizer(tmp_path)
    opened = Tokenizer.open(tmp_path, SHAPE)
    for name in NAMES:
        assert opened(name) == small_tokenizer().encode(name, add_special_tokens=False).ids
