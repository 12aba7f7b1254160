"""SentencePiece models as objects of the `tokenizers` library that give the same ids.

SentencePiece's normaliser replaces the longest sequence at each place by a table (NFKC, with case folding in ours); the
library's takes whole graphemes, looks up how they begin, and loses the rest. Separators that occur in no text therefore
make each grapheme a single character. NFKC has joined the sequences before, held apart wherever SentencePiece's table,
which has only characters with the marks that they decompose into, would leave them alone.
"""

import functools
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from electra_jax.errors import UserError

SPACE = "▁"  # SentencePiece's
# Log probability of pieces that no text may produce (control symbols, bytes by name): below any sum of a few ordinary
# ones. A far lower one would shift the score of unknown characters, which is the minimum minus 10.
UNREACHABLE = -100.0
SEPARATOR = "\ufff8"  # unassigned for ever, and a grapheme of its own; a text that has one loses it
WIDE_TILDE, STAND_IN = "\uff5e", "\ufff7"  # only NFKC replaces the tilde, so it is something else meanwhile


def parse_model(content: bytes) -> Any:
  """The protobuf message of a SentencePiece file."""
  from sentencepiece import sentencepiece_model_pb2 as protos

  return protos.ModelProto.FromString(content)  # ty: ignore[missing-attribute] - made when it is imported


def make_library(content: bytes, unk_id: int, lowercase: bool) -> Library:
  """The model of a file with its own normaliser, in SentencePiece's order of steps; without special tokens.

  Ids are the same for any text, with one exception: in unigram models that were not trained here, pieces of equal sum
  may change places (as in "www", in three of ten thousand texts), because SentencePiece adds scores as float32 and the
  library as float64. Vocabularies trained here have scores that both add exactly.

  Args:
    lowercase: whether a text is lowercased first.

  Raises:
    UserError: the model is neither a unigram model nor one of merges.
  """
  proto = parse_model(content)
  types = type(proto.trainer_spec)
  build = {types.UNIGRAM: _unigram, types.BPE: _merges}.get(proto.trainer_spec.model_type)
  if build is None:
    raise UserError("This kind of SentencePiece model cannot be used", allowed="models of unigrams or merges (BPE)",
                    got=f"a model of type {types.ModelType.Name(proto.trainer_spec.model_type)}",
                    fix="train one with --config.data.tokenizer.kind=sentencepiece")
  kinds = type(proto).SentencePiece
  library = Library(build(proto, unk_id, (kinds.NORMAL, kinds.USER_DEFINED)))
  spec = proto.normalizer_spec
  library.normalizer = normalizers.Sequence(_normaliser(spec, lowercase))
  spaces: dict[str, Any] = {"replacement": SPACE, "split": False,
                            "prepend_scheme": "first" if spec.add_dummy_prefix else "never"}
  library.pre_tokenizer = pre_tokenizers.Metaspace(**spaces)
  library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Metaspace(**spaces)])
  return library


def _unigram(proto, unk_id: int, reachable: tuple[int, ...]) -> models.Model:
  vocab = [(piece.piece, piece.score if piece.type in reachable else UNREACHABLE) for piece in proto.pieces]
  return models.Unigram(vocab, unk_id, proto.trainer_spec.byte_fallback)


def _merges(proto, unk_id: int, reachable: tuple[int, ...]) -> models.Model:
  """Every way to join two pieces into a third, by the third one's score: SentencePiece joins the best, leftmost first.

  Among the ways to one piece the one with the longer left part comes first: merging from the left, it is there first.
  """
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type in reachable}
  merges = [(-score, -cut, (piece[:cut], piece[cut:])) for piece, score in scores.items()
            for cut in range(1, len(piece)) if piece[:cut] in scores and piece[cut:] in scores]
  return models.BPE({piece.piece: i for i, piece in enumerate(proto.pieces)}, [pair for *_, pair in sorted(merges)],
                    unk_token=proto.pieces[unk_id].piece, fuse_unk=True, byte_fallback=proto.trainer_spec.byte_fallback)


def _normaliser(spec, lowercase: bool) -> list[normalizers.Normalizer]:
  steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
  if spec.precompiled_charsmap:
    held_apart, marks = _patterns()
    steps += [normalizers.Replace(Regex(held_apart), SEPARATOR), normalizers.Replace(WIDE_TILDE, STAND_IN)]
    steps += [normalizers.NFKC(), normalizers.Replace(Regex(f"(?<=.)(?={marks})"), SEPARATOR)]
    steps += [normalizers.Replace(STAND_IN, WIDE_TILDE), normalizers.Precompiled(spec.precompiled_charsmap),
              normalizers.Replace(SEPARATOR, "")]
  if spec.remove_extra_whitespaces:
    # A space in front stays: it is the one that Metaspace would add, or the one after a mask.
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(" $"), "")]
  return steps


@functools.cache
def _patterns() -> tuple[str, str]:
  """(where NFKC would join or reorder what SentencePiece's table leaves alone, what a grapheme continues with).

  The table has a sequence for each character that decomposes: a base and the marks that follow it, each also in the
  forms that are equal under NFKC. A mark after anything that itself decomposes is in none.
  """
  every = list(map(chr, range(sys.maxunicode + 1)))
  parts = {c: unicodedata.normalize("NFKD", c) for c in every
           if unicodedata.decomposition(c) or "\uac00" <= c <= "\ud7a3"}
  joined = [unicodedata.normalize("NFD", c) for c in parts if not unicodedata.decomposition(c).startswith("<")]
  later = {c for sequence in joined for c in sequence[1:]}
  marks = {c for c in every if unicodedata.combining(c)} | later
  marks |= {c for c, sequence in parts.items() if sequence[0] in marks}
  forms = {c: {c} for sequence in joined for c in sequence}  # a character -> itself and what NFKC turns into it
  for c, sequence in parts.items():
    forms.setdefault(sequence, set()).add(c)
  around: dict[str, list[set[str]]] = {}  # a mark -> what comes before and after it inside a sequence
  for sequence in joined:
    for before, mark, behind in zip(sequence, sequence[1:], sequence[2:]):
      befores, behinds = around.setdefault(mark, [set(), set()])
      befores.update(forms[before])
      behinds.update(forms[behind])
  decomposable = {c for c, sequence in parts.items() if len(sequence) > 1}
  ends = (marks | decomposable) - set().union(*(forms[mark] for mark in around))
  held_apart = [f"(?<={_class(ends)})", f"(?={_class(marks & decomposable)})"]
  for mark, (befores, behinds) in around.items():
    here = _class(forms[mark])
    held_apart.append(f"(?<={here})(?:(?!{_class(behinds)})|(?<!{_class(befores)}{here}))")
  extending = {c for c in every if unicodedata.category(c).startswith("M")} | set("\n\u200c\u200d")
  extending |= set(map(chr, range(0xE0020, 0xE0080)))  # tags, of flags
  return f"(?<=.)(?={_class(marks)})(?:{'|'.join(held_apart)})", _class(marks | extending)


def _class(characters: Iterable[str]) -> str:
  """A bracket expression of the characters, as ranges."""
  ranges: list[list[int]] = []
  for code in sorted(map(ord, characters)):
    if ranges and code == ranges[-1][1] + 1:
      ranges[-1][1] = code
    else:
      ranges.append([code, code])
  return "[" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges) + "]"
