"""The alphabet of a new WordPiece vocabulary, and the warning about words that a vocabulary does not know."""

import collections
import random

import pytest

from electra_jax.data import shards
from electra_jax.data.shards import manifest
from electra_jax.data.tokenizers.kinds import WordPiece
from electra_jax.data.tokenizers.training import train_wordpiece
from tests.data.corpora import make_config
from tests.data.fakes import FakeTokenizer


def letters(first, number):
  return [chr(first + i) for i in range(number)]


HAN, KANA, HANGUL = letters(0x4E00, 3000), letters(0x3042, 80), letters(0xAC00, 1200)
CYRILLIC, GREEK, DEVANAGARI, ARABIC = (letters(0x430, 32), letters(0x3B1, 25), letters(0x915, 37), letters(0x627, 28))
LATIN = list("abcdefghijklmnopqrstuvwxyz")
MANY = LATIN + CYRILLIC + GREEK + DEVANAGARI + ARABIC + KANA + HAN[:500]


def text_of(alphabet, word_length, number=60_000):
  """Paragraphs of random words; the last letters of the alphabet are a few times rarer than the first."""
  draws = random.Random(0).choices(alphabet, [1 / (i + len(alphabet) / 3) for i in range(len(alphabet))], k=number)
  words = ["".join(draws[i:i + word_length]) for i in range(0, number, word_length)]
  return [" ".join(words[i:i + 20]) for i in range(0, len(words), 20)]


def unknown_share(files, lowercase, texts):
  tokenizer = WordPiece(files, lowercase)
  ids = [i for ids in tokenizer.encode_batch(texts) for i in ids]
  return ids.count(tokenizer.unk_id) / len(ids)


@pytest.mark.parametrize("name, alphabet, word_length, lowercase, vocab_size", [
  ("Chinese", HAN, 300, True, 6000), ("Chinese, hardly more room", HAN, 20, True, 3100),
  ("Chinese, cased", HAN, 20, False, 6000), ("Japanese", KANA + HAN[:1500], 8, False, 4000),
  ("Korean", HANGUL, 3, False, 4000), ("Korean, as its letters", HANGUL, 3, True, 1000),
  ("Russian", CYRILLIC, 6, False, 200), ("Hindi", DEVANAGARI, 5, False, 300), ("Arabic", ARABIC, 5, True, 300),
  ("many scripts", MANY, 4, False, 2500), ("emoji", LATIN + letters(0x1F600, 60), 5, True, 400)])
def test_a_vocabulary_keeps_the_alphabet_of_its_text(name, alphabet, word_length, lowercase, vocab_size):
  texts = text_of(alphabet, word_length)
  files = train_wordpiece(iter(texts), vocab_size, lowercase, 0)
  entries = files["vocab.txt"].decode().split("\n")[:-1]
  assert len(entries) <= vocab_size and len(set(entries)) == len(entries)
  if name != "Korean, as its letters":  # lower case takes syllables apart, as BERT's does
    assert len(set(alphabet) & set(entries)) > 0.99 * len(alphabet)
  assert unknown_share(files, lowercase, texts) < 0.002


def test_a_small_vocabulary_keeps_the_most_frequent_characters_and_says_what_it_loses(capsys):
  texts = text_of(HAN, 20)
  files = train_wordpiece(iter(texts), 1005, True, 0)
  entries = files["vocab.txt"].decode().split("\n")[:-1]
  counts = collections.Counter("".join(texts))
  kept = set(HAN) & set(entries)
  assert len(entries) == 1005 and min(counts[c] for c in kept) >= max(counts[c] for c in set(HAN) - kept)
  said = capsys.readouterr().out
  assert "1,000 of the text's 3,000 characters" in said
  share = float(said.split("the others are ")[1].split("%")[0]) / 100
  assert share == pytest.approx(unknown_share(files, True, texts), rel=0.05)


def test_rare_characters_do_not_take_the_room_of_words(capsys):
  words = text_of(LATIN, 5, 200_000)
  noise = "".join(HAN[:15])  # each once
  entries = train_wordpiece(iter([*words, noise]), 60, True, 0)["vocab.txt"].decode().split("\n")
  assert not set(noise) & set(entries) and set(LATIN) < set(entries)
  assert "26 of the text's 41 characters" in capsys.readouterr().out


# ---- unknown words ----


@pytest.mark.parametrize("num_workers", [1, 2])
def test_unknown_words_are_named(tmp_path, capsys, num_workers):
  path = tmp_path / "a.txt"
  path.write_text("\n\n".join(f"a b c {'雨 ' * (i % 3)}{'Zug ' * (i % 2)}d e f g" for i in range(100)))
  config = make_config(path, num_workers=num_workers)
  made = shards.prepare(config, FakeTokenizer(), str(tmp_path / "s"), seed=0)
  assert made["statistics"]["unknown_words"] == {"雨": 99, "Zug": 50}
  said = capsys.readouterr().out
  assert "Warning: 17.6% of the tokens are unknown to the vocabulary; most often '雨', 'Zug'." in said


def statistics(unknown, tokens, words):
  return {"statistics": {"train": {"unknown_tokens": unknown, "tokens": tokens},
                         "heldout": {"unknown_tokens": 0, "tokens": 0}, "unknown_words": words}}


@pytest.mark.parametrize("unknown, tokens, warns", [(0, 0, False), (0, 100, False), (1, 100, False), (2, 100, True),
                                                    (100, 100, True)])
def test_when_to_warn(unknown, tokens, warns):
  warning = manifest.unknown_warning(statistics(unknown, tokens, {"x" * 500: 3, "雨": 2}))
  assert bool(warning) == warns and (not warns or (len(warning) < 400 and "'雨'" in warning))


def test_ten_words_are_kept(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("\n\n".join(" ".join(f"v{j}" for j in range(i + 1)) for i in range(30)))
  made = shards.prepare(make_config(path), FakeTokenizer(), str(tmp_path / "s"), seed=0)
  assert list(made["statistics"]["unknown_words"]) == [f"v{i}" for i in range(10)]
