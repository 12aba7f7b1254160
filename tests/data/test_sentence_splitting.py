"""Sentences: a line each, or by rule; and what the preparation makes of them."""

import contextlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import base
from electra_jax import config as config_lib
from electra_jax.data import shards
from electra_jax.data.sources import sentence_splitting
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts, make_config, read_all
from tests.data.fakes import FakeTokenizer
from tests.data.test_documents import write


@pytest.mark.parametrize("language, text, sentences", [
  ("en", "Dr. Smith went to the U.S. in 1999. He said \"Hi!\" and left. Really?",
   ["Dr. Smith went to the U.S. in 1999.", 'He said "Hi!" and left.', "Really?"]),
  ("en", "Pi is 3.14, e.g. in Fig. 2 of the book. It goes on...", ["Pi is 3.14, e.g. in Fig. 2 of the book.",
                                                                  "It goes on..."]),
  ("de", "Das ist z. B. am 3. Mai so. Ja!", ["Das ist z. B. am 3. Mai so.", "Ja!"]),
  ("en", "no end", ["no end"])])
def test_running_text(language, text, sentences):
  assert sentence_splitting.split(text, language) == sentences
  assert sentence_splitting.split(text, "line") == [text]


PIECES = ["Mr. ", "A. ", "b? ", '"', "(", ")", "…", " ", "1.", "東。"]


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_nothing_is_lost(text):
  sentences = sentence_splitting.split(text, "en")
  assert all(sentences) and "".join("".join(sentences).split()) == "".join(text.split())


@pytest.mark.parametrize("sentences, fits", [("line", True), ("en", True), ("zh-hans", True), ("lines", False),
                                             ("", False), ("English", False)])
def test_what_is_no_language_is_refused(sentences, fits):
  """sentencex takes any word for a language, and splits by rules of its own."""
  given = base.get_config()
  given.data.sentences = sentences
  with contextlib.nullcontext() if fits else pytest.raises(UserError, match=r"data\.sentences is .*such as en"):
    config_lib.resolve(given)


def test_a_missing_package_is_told(monkeypatch):
  monkeypatch.setitem(sys.modules, "sentencex", None)
  with pytest.raises(UserError) as caught:
    sentence_splitting.split("One. Two.", "en")
  assert_four_parts(caught, "pip install sentencex", "sentences=line")


def test_rows_are_made_of_sentences(tmp_path):
  """FULL-SENTENCES break between sentences, not within; shards of one kind are not taken for the other."""
  text = "She has a red hat. Her cat sleeps. It dreams of very large fish. He goes.\n\nThey left. Nobody saw it.\n"
  path, words = write(tmp_path / "a.txt", text), text.split()
  rows = {}
  for sentences in ("line", "en"):
    config = make_config(path, format="FULL-SENTENCES", heldout_share=0.0, sentences=sentences, sequence_length=12)
    tokenizer = FakeTokenizer(words)
    manifest = shards.prepare(config, tokenizer, str(tmp_path / sentences), seed=0)
    _, ids, num_tokens, _ = read_all(tmp_path / sentences, "train", config_data=config, tokenizer=tokenizer)
    rows[sentences] = [" ".join(tokenizer.tokens(row[:n])[1:-1]) for row, n in zip(ids, num_tokens)]
    assert manifest["statistics"]["train"]["sentences"] == {"line": 2, "en": 6}[sentences]
    assert manifest["statistics"]["train"]["paragraphs"] == 2
  assert rows["en"] == ["She has a red hat. Her cat sleeps.", "It dreams of very large fish. He goes.",
                           "They left. Nobody saw it."]
  assert rows["line"][0] == "She has a red hat. Her cat sleeps. It dreams"
  with pytest.raises(UserError, match=r"data\.sentences is 'en' but .* 'line'"):
    shards.open_shards(str(tmp_path / "line"), "train", config)
