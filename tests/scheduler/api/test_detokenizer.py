"""The messages' texts, joined, are the text that decoding everything at once gives."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models

from scheduler.api.detokenizer import LONGEST_HELD_RUN
from scheduler.api.pieces import detokenizer_maker
from scheduler.api.tokenizer import Tokenizer
from tests.scheduler.api import small_tokenizers

NO_PROMPT: tuple[int, ...] = ()


def pieces(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    prompt: Sequence[int] = NO_PROMPT,
    include_special: bool = True,
) -> list[str]:
    """The text of each token, and at the end that of the end."""
    detokenizer = tokenizer.detokenizer(prompt, include_special)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


def random_ids(rng: random.Random, vocabulary: int, special: Sequence[int]) -> list[int]:
    return [
        rng.choice(special) if rng.random() < 0.1 else rng.randrange(vocabulary)
        for _ in range(rng.randint(1, 64))
    ]


@pytest.mark.parametrize("include_special", [True, False])
def test_random_ids_of_smollm2_stream_as_they_decode(smollm2, smollm2_reference, include_special):
    rng = random.Random(1)
    for _ in range(1000):
        ids = random_ids(rng, 49152, sorted(smollm2.special_ids))
        expected = smollm2_reference.decode(ids, skip_special_tokens=not include_special)
        assert "".join(pieces(smollm2, ids, include_special=include_special)) == expected


@pytest.mark.parametrize("include_special", [True, False])
def test_random_bytes_of_smollm2_stream_as_they_decode(smollm2, smollm2_reference, include_special):
    """Ids of single bytes, so that most characters are broken ones."""
    rng = random.Random(2)
    single_bytes = [i for i in range(49152) if len(smollm2_reference.id_to_token(i)) == 1]
    assert len(single_bytes) == 235
    for _ in range(1000):
        ids = rng.choices([*single_bytes, 0, 24211], k=rng.randint(1, 64))
        expected = smollm2_reference.decode(ids, skip_special_tokens=not include_special)
        assert "".join(pieces(smollm2, ids, include_special=include_special)) == expected


@pytest.mark.parametrize("include_special", [True, False])
@pytest.mark.parametrize("kind", ["byte_fallback", "byte_level"])
def test_random_ids_of_small_tokenizers_stream_as_they_decode(kind, include_special, request):
    tokenizer = request.getfixturevalue(kind)
    reference = getattr(small_tokenizers, kind)()
    rng = random.Random(3)
    for _ in range(2000):
        # Two ids past the vocabulary: a model may have more than its tokenizer.
        ids = random_ids(rng, reference.get_vocab_size() + 2, sorted(tokenizer.special_ids))
        expected = reference.decode(ids, skip_special_tokens=not include_special)
        assert "".join(pieces(tokenizer, ids, include_special=include_special)) == expected


@pytest.mark.parametrize("include_special", [True, False])
@pytest.mark.parametrize("kind", ["byte_fallback", "byte_level"])
def test_text_goes_on_where_the_prompt_ends(kind, include_special, request):
    """decode(prompt + output) is decode(prompt) and the output's text, leading space and
    all, if the prompt does not end inside a character."""
    tokenizer = request.getfixturevalue(kind)
    reference = getattr(small_tokenizers, kind)()
    rng = random.Random(4)
    texts = ["", " ", "  ", "Paris", " Paris", "  Paris is", "the mat\n", "é!"]
    for _ in range(500):
        prompt = reference.encode(rng.choice(texts)).ids[rng.randint(0, 1) :]
        output = reference.encode(rng.choice(texts), add_special_tokens=False).ids
        before = reference.decode(prompt, skip_special_tokens=not include_special)
        whole = reference.decode(prompt + output, skip_special_tokens=not include_special)
        text = "".join(pieces(tokenizer, output, prompt, include_special))
        assert before + text == whole


def test_a_first_token_keeps_its_space(smollm2, smollm2_reference, byte_fallback):
    prompt = smollm2_reference.encode("The capital of France is").ids
    assert pieces(smollm2, [7042], prompt) == [" Paris", ""]
    paris = small_tokenizers.byte_fallback().token_to_id("▁Paris")
    assert pieces(byte_fallback, [paris], [1, paris]) == [" Paris", ""]
    assert pieces(byte_fallback, [paris], [1], include_special=False) == ["Paris", ""]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([10813, 230, 131], ["", "", "🌶", ""]),
        ([10813, 121, 250], ["", "", "🫠", ""]),
        ([143, 233], ["", "ď", ""]),
        ([24211, 24211], ["\ufffd", "\ufffd", ""]),  # the model's own replacement marks
    ],
)
def test_a_character_comes_with_its_last_token(smollm2, ids, expected):
    assert pieces(smollm2, ids) == expected


def test_a_joined_emoji_comes_character_by_character(smollm2, smollm2_reference):
    family = "👨\u200d👩\u200d👧"
    ids = smollm2_reference.encode(family).ids
    texts = pieces(smollm2, ids)
    assert "".join(texts) == family
    assert [text for text in texts if text] == ["👨", "\u200d", "👩", "\u200d", "👧"]


def test_an_end_inside_a_character_brings_one_mark_and_keeps_the_text_before(smollm2):
    texts = pieces(smollm2, [2083, 1979, 10813, 230])
    assert texts[2:] == ["", "", "\ufffd"]
    assert "\ufffd" not in "".join(texts[:4])
    assert all(texts[:2])


@pytest.mark.parametrize(
    "ids", [[131], [131, 905], [10813, 905], [10813, 10813, 230, 131], [120, 120, 120, 120]]
)
def test_a_prompt_that_ends_inside_a_character_never_shows(smollm2, smollm2_reference, ids):
    prompt = [19556, 905, 216, 10813, 230]
    assert "".join(pieces(smollm2, ids, prompt)) == smollm2_reference.decode(ids)
    assert "\ufffd" in smollm2_reference.decode(ids)


def test_a_byte_fallback_character_comes_once_its_run_is_over(byte_fallback):
    reference = small_tokenizers.byte_fallback()
    ids = [*(reference.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode()), 1]
    assert pieces(byte_fallback, ids, [5], include_special=True) == ["", "", "é<s>", ""]
    assert pieces(byte_fallback, ids, [5], include_special=False) == ["", "", "", "é"]


def test_a_long_run_of_byte_tokens_streams(byte_fallback):
    reference = small_tokenizers.byte_fallback()
    text = "ກ" * 100  # three bytes each, none of them in the vocabulary
    ids = [reference.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
    texts = pieces(byte_fallback, ids, [5])
    assert "".join(texts) == text
    first = next(i for i, piece in enumerate(texts) if piece)
    assert first == LONGEST_HELD_RUN
    assert all("".join(texts[i : i + 3]) == "ກ" for i in range(first + 2, 290))


def test_ids_without_a_token_have_no_text(smollm2, byte_fallback):
    assert pieces(smollm2, [10**6, 7042, 49152]) == ["", " Paris", "", ""]
    assert pieces(byte_fallback, [10**6]) == ["", ""]


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Metaspace()])
def test_any_other_decoder_streams_as_it_decodes(decoder):
    reference = small_tokenizers.word_piece()
    if decoder is None:
        reference = HuggingFaceTokenizer(reference.model)
    elif isinstance(decoder, decoders.Metaspace):
        reference = HuggingFaceTokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "s": 2}, "s"))
        reference.decoder = decoder
    rng = random.Random(5)
    make = detokenizer_maker(reference, frozenset([4]))
    for _ in range(300):
        ids = rng.choices(range(reference.get_vocab_size()), k=rng.randint(1, 64))
        detokenizer = make(())
        text = "".join([*map(detokenizer.push, ids), detokenizer.finish()])
        assert text == reference.decode([i for i in ids if i != 4])
