"""What do counts alone say about a token? Vectors from a corpus, for a token table that does not start at random.

Positive pointwise mutual information of tokens that stand near each other, and a truncated singular value
decomposition of it (Levy, Goldberg & Dagan 2015). A network needs far more text to find the same: its losses weigh a
token by how often it occurs, and neighbours, which tell about grammar, are what it learns from first.
"""

import numpy as np
import scipy.sparse
from jaxtyping import Float32, Int32
from scipy.sparse.linalg import svds

from electra_jax.data import shards

REACH = 15  # tokens on each side: what texts are about shows at a distance, grammar in the neighbours
MAX_TOKENS = 10_000_000  # positions that are counted; more change little and the pairs are held in memory
BLOCK_ROWS = 8192  # examples whose pairs are added at once


def of_examples(examples: shards.ShardedExamples, vocab_size: int, special_ids: tuple[int, ...], size: int, seed: int
                ) -> Float32[np.ndarray, "vocab size"]:
  """`of_counts` of a split's first examples."""
  number = min(len(examples), -(-MAX_TOKENS // examples.sequence_length))
  counts = scipy.sparse.csr_matrix((vocab_size, vocab_size))
  for first in range(0, number, BLOCK_ROWS):
    ids, _, _ = examples.read(np.arange(first, min(first + BLOCK_ROWS, number)))
    counts = counts + cooccurrences(ids, vocab_size, (*special_ids, examples.pad_id))
  return of_counts(counts, size, seed)


def cooccurrences(ids: Int32[np.ndarray, "rows length"], vocab_size: int,
                  left_out: tuple[int, ...]) -> scipy.sparse.csr_matrix:
  """How often two tokens stand at most REACH positions apart in a row, [vocab, vocab], symmetric.

  >>> counts = cooccurrences(np.array([[1, 5, 6, 5, 2, 0]], np.int32), 7, (0, 1, 2)).toarray().astype(int)
  >>> counts[5:, 5:].tolist(), int(counts.sum())
  ([[2, 2], [2, 0]], 6)
  """
  counts = scipy.sparse.csr_matrix((vocab_size, vocab_size))
  is_counted = ~np.isin(np.arange(vocab_size), left_out)
  for distance in range(1, min(REACH, ids.shape[1] - 1) + 1):
    pairs = np.stack([ids[:, :-distance].ravel(), ids[:, distance:].ravel()])
    pairs = pairs[:, is_counted[pairs].all(axis=0)]
    counts = counts + scipy.sparse.coo_matrix((np.ones(pairs.shape[1]), pairs), counts.shape).tocsr()
  return (counts + counts.T).tocsr()


def of_counts(counts: scipy.sparse.csr_matrix, size: int, seed: int) -> Float32[np.ndarray, "vocab size"]:
  """U sqrt(S) of the positive PMI, centred, with a standard deviation of one; zeros for tokens without a neighbour.

  Args:
    counts: [vocab, vocab], symmetric.
    seed: of the vector that the decomposition starts from; the same counts and seed give the same vectors.
  """
  totals = np.asarray(counts.sum(axis=1)).ravel()
  pairs = counts.tocoo()
  pmi = np.log(pairs.data) + np.log(totals.sum()) - np.log(totals[pairs.row]) - np.log(totals[pairs.col])
  kept = pmi > 0
  positive = scipy.sparse.csr_matrix((pmi[kept], (pairs.row[kept], pairs.col[kept])), counts.shape)
  start = np.random.default_rng(seed).standard_normal(counts.shape[0])
  left, values, _ = svds(positive, size, v0=start)
  largest = np.take_along_axis(left, np.abs(left).argmax(axis=0)[None], axis=0)  # a singular vector has no sign
  vectors = left * np.sign(largest) * np.sqrt(values)
  is_known = totals > 0
  vectors -= vectors[is_known].mean(axis=0)
  vectors[~is_known] = 0
  return (vectors / vectors[is_known].std()).astype(np.float32)
