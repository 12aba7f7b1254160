"""Examples and the parameters of packing: the types that the input formats share."""

from typing import NamedTuple

Paragraphs = list[list[int]]  # one document, encoded

# Values of `Example.nsp_label`, as in BERT's code and Hugging Face's.
NO_NSP, IS_NEXT, IS_RANDOM = -1, 0, 1


class Example(NamedTuple):
  """One packed sequence."""

  ids: list[int]  # with special tokens, without padding; at most sequence_length
  second_segment_start: int  # index of segment B's first token; len(ids) if there is only one segment
  nsp_label: int = NO_NSP  # IS_NEXT: segment B follows A in its document; IS_RANDOM: it is another document's


class Packing(NamedTuple):
  """What the formats need to know. Lengths are in tokens, special tokens included."""

  sequence_length: int
  cls_id: int
  sep_id: int
  single_segment_share: float = 0.0  # ELECTRA only
  short_sequence_share: float = 0.0  # ELECTRA and SEGMENT-PAIR
  seed: int = 0  # of the draws of ELECTRA and the pairs
  first_document: int = 0  # number of the first document, so that a document's draws do not depend on its batch
  num_lenders: int = 0  # pairs: the first so many documents only lend their tokens


SHORTEST = 5  # tokens of the smallest short target: [CLS] a [SEP] b [SEP]
