"""Tokens as text: rows read as they were written, ranges begin at what can be seen, special tokens are read by name."""

import numpy as np
import pytest

from configs import base
from electra_jax import config as config_lib
from electra_jax.data import sentences
from electra_jax.data.tokenizers import TOKENIZERS
from electra_jax.tools import report_samples, show_batch
from tests.workdirs import TEXT, make_workdir

KINDS = ("sentencepiece", "sentencepiece_bpe", "byte_bpe", "wordpiece")
LINES = ["the cat sat", "naïve café — “rain” …", "漢字 on the mat", "🙂👩‍👧 ok", "Ħæ ĳ þ", "½ €5, ∞", "ελληνικά the",
         "a \x7f b", "día\u0301 x", "the ☃"]


@pytest.fixture(scope="module")
def trained():
  return {kind: TOKENIZERS[kind].tokenizer(TOKENIZERS[kind].train(iter(TEXT * 20), 400, False, 0), False)
          for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("line", LINES)
def test_rows_of_bytes_read_as_characters(trained, kind, line):
  tokenizer = trained[kind]
  (ids,) = tokenizer.encode_batch([line])
  texts = sentences.piece_texts(tokenizer, ids)
  assert len(texts) == len(ids) and "".join(texts).strip() == tokenizer.decode(ids).strip()
  assert "<0x" not in "".join(texts) and "\N{REPLACEMENT CHARACTER}" not in "".join(texts)
  marked = np.arange(len(ids)) == len(ids) // 2
  shown = show_batch.render(tokenizer, np.array(ids), marked, "bold", brackets=True).plain
  assert shown.count("‹") == shown.count("›") == 1 and shown.translate({ord(c): None for c in "‹›"}) == "".join(texts)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_half_a_character_is_marked_and_the_next_one_is_whole(trained, kind):
  tokenizer = trained[kind]
  (ids,) = tokenizer.encode_batch(["漢字"])
  whole = sentences.piece_texts(tokenizer, ids)
  cut = sentences.piece_texts(tokenizer, [*ids[:-1], tokenizer.sep_id, *ids])
  assert "\N{REPLACEMENT CHARACTER}" in "".join(cut) and "".join(cut).strip().endswith("".join(whole).strip())
  assert sentences.piece_text(tokenizer, ids[-1]) in ("\N{REPLACEMENT CHARACTER}", "<0x97>")


@pytest.mark.parametrize("text, seen", [
  ("\u200bthe cat", "the"), ("the \u200bcat", "cat"), ("\ufeffthe", "the"), ("a\u200d the", "the"),
  ("\u2060cat", "cat"), ("the\x00 cat", "cat"), (" \u200e cat", "cat"), ("\xadthe cat", "the"), ("the  cat", "cat")])
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_begin_at_what_can_be_seen(trained, kind, text, seen):
  _, offsets = trained[kind].encode_words(text)
  starts = {text[start] for start, end in offsets if start < end}
  if kind.startswith("sentencepiece"):
    assert not starts & {*"\u200b\ufeff\u200d\u2060\x00\u200e\xad "}
  assert any(text[start:end] and seen.startswith(text[start:end]) for start, end in offsets)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [("the cat", "sat"), ("", "sat"), ("the", ""), ("the ", " sat"), ("the.", ".sat"),
                                   ("漢", "字"), ("a  b", "c"), ("12", "34")])
def test_names_of_special_tokens_are_read_in_questions_alone(trained, kind, parts):
  tokenizer = trained[kind]
  names = {role: tokenizer.tokens([i])[0] for role, i in (("cls", tokenizer.cls_id), ("sep", tokenizer.sep_id),
                                                         ("pad", tokenizer.pad_id), ("mask", tokenizer.mask_id))}
  for role, name in names.items():
    text = name.join(parts)
    ids, offsets = tokenizer.encode_words(text)
    wanted = getattr(tokenizer, f"{role}_id")
    assert ids == tokenizer.encode(text) and ids.count(wanted) == 1
    start, end = offsets[ids.index(wanted)]
    assert text[start:end].strip() == name
    assert wanted not in tokenizer.encode_batch([text])[0]


def test_one_long_sample_takes_no_other_away(tmp_path_factory, monkeypatch):
  workdir = make_workdir(tmp_path_factory.getbasetemp(), base, "sentencepiece")
  monkeypatch.setattr(report_samples, "_heldout_texts",
                      lambda *args: ["the cat sat on the mat", "漢字 " * 999, "", "rain fell on the roof"])
  page = report_samples.of_pretraining(workdir, config_lib.load(workdir), 4)
  assert page.count('class="hidden"') == 2 and "mat" in page and "roof" in page
