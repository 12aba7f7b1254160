"""How is a row cut into shorter ones? Plainly: every token stays, in its order, and an update keeps its size.

BERT made 90 % of its updates on rows of 128 tokens and the rest on rows of 512, which trained its later positions
(Devlin et al. 2019, Appendix A.2): attention costs less meanwhile.

Differs from BERT, which packs its text a second time, into rows of 128 tokens that each have [CLS] and [SEP]: here the
rows of the shards are cut as they are read, so only the first piece of a row begins with [CLS], and the last one that
is not all padding ends with [SEP]. Two more tokens in each piece would have to push others out. So both parts of a run
see the same documents in the same order, each token once an epoch, and differ in the reach of attention and in the
positions alone. What is predicted from [CLS] cannot be trained on pieces: `config_rules` refuses that.
"""

import numpy as np
from jaxtyping import Int32, Int64


def cut(input_ids: Int32[np.ndarray, "batch length"], num_tokens: Int32[np.ndarray, "batch"],
        second_segment_start: Int32[np.ndarray, "batch"], number: int) -> tuple[
          Int32[np.ndarray, "pieces piece_length"], Int32[np.ndarray, "pieces"], Int32[np.ndarray, "pieces"]]:
  """The `number` equally long pieces of each row, in succession; the last ones may be all padding, with 0 tokens.

  >>> ids, num_tokens, second = cut(np.array([[1, 7, 2, 8, 2, 0, 0, 0, 0]], np.int32), np.array([5]), np.array([3]), 3)
  >>> ids.tolist(), num_tokens.tolist(), second.tolist()
  ([[1, 7, 2], [8, 2, 0], [0, 0, 0]], [3, 2, 0], [3, 0, 0])
  """
  length = input_ids.shape[1] // number
  first = np.arange(number, dtype=np.int32) * length
  counts = np.clip(num_tokens[:, None] - first, 0, length)  # [batch, number]
  starts = np.clip(second_segment_start[:, None] - first, 0, length)
  return input_ids.reshape(-1, length), counts.ravel(), starts.ravel()


def numbers(example_ids: Int64[np.ndarray, "batch"], number: int, num_examples: int) -> Int64[np.ndarray, "pieces"]:
  """What the masks of each piece are hashed from: numbers behind those of all examples, so that no two rows share any.

  >>> numbers(np.array([4, 0]), 2, num_examples=10).tolist()
  [14, 24, 10, 20]
  """
  return (example_ids[:, None] + np.arange(1, number + 1) * num_examples).ravel()
