"""What a client sees of an output: no special tokens unless asked, nothing of or after a
stop string, and no character later than needed."""

from __future__ import annotations

import random

import pytest

from scheduler.api.output_text import OutputText
from tests.scheduler.api import small_tokenizers

PROMPT = [5]


def run(tokenizer, ids, stop=(), include_special=False):
    """(text after each token, stop string found, its token's number)."""
    output = OutputText(tokenizer, PROMPT, stop, include_special)
    texts: list[str] = []
    for number, token_id in enumerate(ids, 1):
        found = output.push(token_id)
        texts.append(output.take())
        if found is not None:
            return texts, found, number
    found = output.finish()
    texts.append(output.take())
    return texts, found, len(ids) if found else None


@pytest.fixture(scope="module")
def ids_of(smollm2_reference):
    return lambda text: smollm2_reference.encode(text).ids


def test_text_before_a_stop_string_is_kept_and_nothing_after_it(smollm2, ids_of):
    ids = ids_of("one two three four")
    texts, found, number = run(smollm2, ids, [" three"])
    assert ("".join(texts), found, number) == ("one two", " three", 3)


def test_a_stop_string_over_several_tokens_is_held_back_until_it_is_none(smollm2, ids_of):
    ids = ids_of("a b c d e")
    assert len(ids) == 5
    texts, found, _ = run(smollm2, ids, [" b c x"])
    assert found is None
    assert texts == ["a", "", "", " b c d", " e", ""]
    texts, found, number = run(smollm2, ids, [" b c d"])
    assert (texts, found, number) == (["a", "", "", ""], " b c d", 4)


def test_a_stop_string_inside_a_token_cuts_the_token(smollm2, ids_of):
    ids = ids_of("The capital of France")
    texts, found, number = run(smollm2, ids, ["ranc"])
    assert ("".join(texts), found, number) == ("The capital of F", "ranc", 4)


def test_what_was_held_back_comes_with_the_end(smollm2, ids_of):
    texts, found, _ = run(smollm2, ids_of("a b"), [" b c"])
    assert (texts, found) == (["a", "", " b"], None)


def test_a_stop_string_that_the_end_of_a_broken_character_completes(smollm2):
    texts, found, number = run(smollm2, [2083, 10813], ["\ufffd"])
    assert (found, number) == ("\ufffd", 2)
    assert "\ufffd" not in "".join(texts)


@pytest.mark.parametrize("include_special", [True, False])
def test_a_stop_string_that_names_a_special_token_stops(smollm2, ids_of, include_special):
    ids = [*ids_of("one two"), 2, *ids_of(" three")]
    texts, found, number = run(smollm2, ids, ["<|im_end|>"], include_special)
    assert ("".join(texts), found, number) == ("one two", "<|im_end|>", 3)


def test_a_stop_string_may_begin_in_text_and_end_in_a_hidden_token(smollm2, ids_of):
    ids = [*ids_of("one two"), 2]
    texts, found, number = run(smollm2, ids, ["wo<|im_end"])
    assert ("".join(texts), found, number) == ("one t", "wo<|im_end", 3)


def test_a_stop_string_may_begin_in_a_hidden_token_and_end_in_text(smollm2, ids_of):
    ids = [*ids_of("one"), 2, *ids_of(" two three")]
    texts, found, number = run(smollm2, ids, ["end|> tw"])
    assert ("".join(texts), found, number) == ("one", "end|> tw", 3)


def test_bytes_before_a_hidden_token_that_stops_are_not_lost(byte_fallback):
    reference = small_tokenizers.byte_fallback()
    accent = [reference.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode()]
    texts, found, number = run(byte_fallback, [*accent, 2, 7], ["</s>"])
    assert ("".join(texts), found, number) == ("é", "</s>", 3)


def test_special_tokens_are_shown_only_if_asked(smollm2, ids_of):
    ids = [*ids_of("one"), 0, 2]
    assert "".join(run(smollm2, ids)[0]) == "one"
    assert "".join(run(smollm2, ids, include_special=True)[0]) == "one<|endoftext|><|im_end|>"


@pytest.mark.parametrize("kind", ["smollm2", "byte_level", "byte_fallback"])
@pytest.mark.parametrize("include_special", [True, False])
def test_random_outputs_with_random_stop_strings_equal_cutting_the_whole_text(
    kind, include_special, request
):
    """Without broken characters, the client's text is the decode of the searched text's
    tokens up to the match."""
    tokenizer = request.getfixturevalue(kind)
    special = sorted(tokenizer.special_ids)
    text = "the cat sat on the mat, é 🌶 and the rat: Paris is the end"
    ids = tokenizer.encode_text(text)[tokenizer is not request.getfixturevalue("smollm2") :]
    rng = random.Random(6)
    matched = 0
    for _ in range(400):
        token_id = rng.choice(special)
        output = list(ids)
        output.insert(rng.randint(0, 8), token_id)
        at = rng.randrange(len(text) - 8)
        stop = [text[at : at + rng.randint(2, 8)], rng.choice(["zz", "the x", "t<"])]
        whole = "".join(run(tokenizer, output, (), True)[0])
        name = "".join(run(tokenizer, [token_id], (), True)[0])
        hidden_at = whole.index(name)
        ends = [(whole.index(string) + len(string), string) for string in stop if string in whole]
        end, expected = min(ends, default=(None, None))
        shown = whole[: None if end is None else end - len(expected)]
        if not include_special:
            shown = shown[:hidden_at] + shown[hidden_at + len(name) :]
        texts, found, _ = run(tokenizer, output, stop, include_special)
        assert (found, "".join(texts)) == (expected, shown)
        matched += found is not None
    assert matched > 200


def test_without_a_tokenizer_there_is_no_text():
    assert run(None, [1, 2, 3]) == (["", "", "", ""], None, None)
