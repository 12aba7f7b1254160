"""Features of an example: [CLS] A [SEP], [CLS] A [SEP] B [SEP] (RoBERTa: </s></s>), words with tags."""

from collections.abc import Mapping, Sequence

from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.tasks.base import Example, Feature, Task


def of_examples(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
  """The features of all examples; `_example` is the number of the example that a feature comes from."""
  return [feature | {"_example": number} for number, example in enumerate(examples)
          for feature in task.featurize(example, tokenizer, max_length)]


def sequence(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> Feature:
  """One or two texts as ids and segments; if they are too long, the longer one loses its end, token by token.

  A byte-level vocabulary follows RoBERTa: two separators between the texts.
  """
  parts = [list(tokenizer.encode(text)) for text in texts]
  special = 2 + (len(parts) - 1) * num_separators(tokenizer)
  total = sum(map(len, parts)) + special
  while sum(map(len, parts)) > max_length - special:
    max(reversed(parts), key=len).pop()  # of equally long ones the second
  return {**joined(tokenizer, parts), "_was_cut": total > max_length}


def joined(tokenizer: Tokenizer, parts: Sequence[Sequence[int]]) -> Feature:
  """Texts given as ids, with the special tokens around and between them."""
  between = num_separators(tokenizer)
  ids, segments = [tokenizer.cls_id], [0]
  for number, part in enumerate(parts):
    separators = [tokenizer.sep_id] * (between if number < len(parts) - 1 else 1)
    ids += [*part, *separators]
    segments += [number] * (len(part) + 1) + [number + 1] * (len(separators) - 1)
  return {"input_ids": ids, "token_type_ids": segments}


def as_choices(rows: Sequence[Feature], number: int) -> list[Feature]:
  """Sequences grouped into features of `number` choices each: every list has an entry for each choice."""
  return [{key: [row[key] for row in part] for key in part[0] if key != "_was_cut"}
          | {"_was_cut": any(row["_was_cut"] for row in part)}
          for part in (rows[first:first + number] for first in range(0, len(rows), number))]


def num_separators(tokenizer: Tokenizer) -> int:
  """How many separators stand between two texts: [SEP], or RoBERTa's </s></s>."""
  return 2 if tokenizer.kind == "byte_bpe" else 1


def words(tokenizer: Tokenizer, example: Example, max_length: int, label_ids: Mapping[str, int]) -> Feature:
  """A sentence of words: a word's tag stands at its first piece, -1 elsewhere."""
  pieces = [list(tokenizer.encode((" " if number else "") + word)) or [tokenizer.unk_id]
            for number, word in enumerate(example.texts[0])]
  total = sum(map(len, pieces)) + 2
  ids, tags, first = [tokenizer.cls_id], [-1], []
  for number, piece in enumerate(pieces):
    if len(ids) + len(piece) + 1 > max_length:
      break
    first.append(len(ids))
    ids += piece
    label = 0 if example.label is None else label_ids[example.label[number]]
    tags += [label] + [-1] * (len(piece) - 1)
  return {"input_ids": [*ids, tokenizer.sep_id], "token_type_ids": [0] * (len(ids) + 1), "tags": [*tags, -1],
          "_first": first, "_was_cut": total > max_length}
