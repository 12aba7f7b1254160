"""Training of vocabularies, a function for each kind: texts -> the files that define the tokenizer.

Each is deterministic: the same texts in the same order give the same bytes.
"""

import collections
import io
import json
import string
from collections.abc import Iterator

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from electra_jax.data.tokenizers import kinds, sentencepiece_library
from electra_jax.errors import UserError

# Constant: each thread sums its own share of the expected counts, and sums of floats depend on the split.
SENTENCEPIECE_THREADS = 2
# Log probabilities are multiples of this, so that sums down to -65,536 (thousands of pieces) are exact in float32 and
# every library finds the same ties between ways to cut a word. It changes a piece's probability by at most 0.2 %.
SCORE_UNIT = 2.0 ** -8
ALPHABET_COVERAGE = 0.9999  # of a text: rarer characters are mostly noise and would take the room of words


def train_sentencepiece(texts: Iterator[str], vocab_size: int, lowercase: bool, seed: int,
                        model_type: str = "unigram") -> dict[str, bytes]:
  """A unigram model, or with "bpe" one of merges; byte fallback; NFKC, with case folding if lowercase.

  Holds the texts (at most `training_bytes`) in memory, as `train_wordpiece` does.

  Raises:
    UserError: the vocabulary is too small for the characters of the texts, or the texts are too few.
  """
  pad, unk, *control = kinds.SentencePiece.special_tokens
  ascii_characters = string.digits + string.punctuation + string.ascii_letters
  corpus = list(texts)  # so that a fault of the text does not become SentencePiece's RuntimeError
  model = io.BytesIO()
  sentencepiece.set_random_generator_seed(seed)
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(corpus), model_writer=model, model_type=model_type, vocab_size=vocab_size,
      hard_vocab_limit=False, byte_fallback=True,
      normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc", pad_id=0, pad_piece=pad,
      unk_id=1, unk_piece=unk, bos_id=-1, eos_id=-1, control_symbols=",".join(control),
      required_chars=ascii_characters.lower() if lowercase else ascii_characters,  # however rare in the texts
      max_sentence_length=1 << 24,  # bytes; the default silently drops paragraphs over 4192
      num_threads=SENTENCEPIECE_THREADS, minloglevel=2)
  except RuntimeError as error:
    raise UserError("SentencePiece cannot learn a vocabulary from this text", got=str(error),
                    allowed="261 entries (5 special tokens, 256 bytes), one for each ASCII character and one for each "
                            "other character of the text; enough text",
                    fix="raise --config.data.tokenizer.vocab_size, or give more text") from error
  return {"sentencepiece.model": _with_exact_sums(model.getvalue()) if model_type == "unigram" else model.getvalue()}


def _with_exact_sums(model: bytes) -> bytes:
  """The model with its scores rounded to SCORE_UNIT."""
  proto = sentencepiece_library.parse_model(model)
  for piece in proto.pieces:
    piece.score = round(piece.score / SCORE_UNIT) * SCORE_UNIT
  return proto.SerializeToString()


def train_wordpiece(texts: Iterator[str], vocab_size: int, lowercase: bool, seed: int) -> dict[str, bytes]:
  """A WordPiece vocabulary; holds the texts (at most `training_bytes`) in memory.

  Differs from BERT's own, whose trainer was never published: pieces are merged by pair counts, as in BPE.
  """
  del seed  # nothing is drawn
  library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  kinds.WordPiece.set_pipeline(library, lowercase)
  corpus = list(texts)
  alphabet, inner = _alphabet(corpus, library, room=vocab_size - len(kinds.WordPiece.special_tokens))
  # The trainer numbers the "##c" pieces in the order of a randomly seeded hash table, which decides ties between
  # merges. Given as special tokens they have fixed numbers.
  library.train_from_iterator(corpus, trainers.WordPieceTrainer(
    vocab_size=vocab_size, min_frequency=2, special_tokens=[*kinds.WordPiece.special_tokens, *inner],
    initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False))
  return {"vocab.txt": "".join(token + "\n" for token in kinds.entries_of(library)).encode("utf-8")}


def _alphabet(texts: list[str], library: tokenizers.Tokenizer, room: int) -> tuple[list[str], list[str]]:
  """The characters that get an entry, and the "##c" of those that can continue a word, both in code point order.

  They are the most frequent ones after normalisation: as many as fit, until they are ALPHABET_COVERAGE of the text and
  fill a quarter of the room. Prints what share of the text the others are.
  """
  raw, counts = collections.Counter(), collections.Counter()
  for text in texts:
    raw.update(text)
  for character, count in raw.items():
    for normal in library.normalizer.normalize_str(character):
      if not normal.isspace():
        counts[normal] += count
  alphabet, inner, covered, total = [], [], 0, sum(counts.values())
  for character in sorted(counts, key=lambda c: (-counts[c], c)):
    used = len(alphabet) + len(inner)
    # Punctuation and Chinese characters are words of their own.
    words = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str("a" + character))
    continues_words = len(words) == 1
    if used + 1 + continues_words > room or (used >= room // 4 and covered >= ALPHABET_COVERAGE * total):
      break
    alphabet.append(character)
    inner += ["##" + character] * continues_words
    covered += counts[character]
  if covered < total:
    print(f"The vocabulary has {len(alphabet):,} of the text's {len(counts):,} characters; the others are "
          f"{100 * (1 - covered / total):.2g}% of the text, and words with them become [UNK].", flush=True)
  return sorted(alphabet), sorted(inner)


def train_byte_bpe(texts: Iterator[str], vocab_size: int, lowercase: bool, seed: int) -> dict[str, bytes]:
  """A byte-level BPE vocabulary in RoBERTa's layout: <s> 0, <pad> 1, </s> 2, <unk> 3, and <mask> last."""
  del seed  # nothing is drawn
  library = tokenizers.Tokenizer(models.BPE())
  kinds.ByteBPE.set_pipeline(library, lowercase)
  library.train_from_iterator(texts, trainers.BpeTrainer(
    vocab_size=vocab_size - 1, min_frequency=2, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
  vocab = {token: i for i, token in enumerate([*kinds.entries_of(library), "<mask>"])}
  merges = json.loads(library.to_str())["model"]["merges"]
  return {"vocab.json": json.dumps(vocab, ensure_ascii=False).encode("utf-8"),
          "merges.txt": merges_text(merges).encode("utf-8")}


def merges_text(merges: list[list[str]]) -> str:
  """merges.txt from the merges of a library's tokenizer.json, such as [["a", "b"]]."""
  return "\n".join(["#version: 0.2", *map(" ".join, merges)]) + "\n"
