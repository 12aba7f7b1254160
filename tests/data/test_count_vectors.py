"""Do vectors of counts say which tokens stand together, and does a run start from them?"""

import numpy as np
import pytest
import scipy.sparse

from configs import tiny
from electra_jax import checkpoints, inputs, pretrain
from electra_jax import config as config_lib
from electra_jax.data import count_vectors
from electra_jax.errors import UserError
from tests.small_runs import Place, small
from tests.test_pretrain import write_corpus

SPECIAL = (0, 1, 2)


def rows(number=400, topics=3, length=12, vocab_size=23):
  """[CLS], words of one of three topics of six, [SEP], padding: what stands together is the topic's."""
  rng = np.random.default_rng(0)
  topic = rng.integers(topics, size=(number, 1))
  ids = 3 + 6 * topic + rng.integers(6, size=(number, length))
  ids[:, 0], ids[:, -2], ids[:, -1] = 1, 2, 0
  return ids.astype(np.int32), vocab_size


def test_tokens_of_a_topic_are_alike_and_what_never_occurs_is_zero():
  ids, vocab_size = rows()
  counts = count_vectors.cooccurrences(ids, vocab_size, SPECIAL)
  assert (counts != counts.T).nnz == 0 and counts[list(SPECIAL)].nnz == 0
  vectors = count_vectors.of_counts(counts, 2, seed=0)
  assert vectors.dtype == np.float32 and vectors.shape == (23, 2)
  assert not vectors[[*SPECIAL, 21, 22]].any()
  words = vectors[3:21].reshape(3, 6, 2)
  between = np.linalg.norm(np.diff(words.mean(axis=1), axis=0), axis=1).min()
  assert np.linalg.norm(words - words.mean(axis=1, keepdims=True), axis=2).max() < 0.2 * between
  np.testing.assert_allclose(vectors[3:21].std(), 1, rtol=1e-5)
  np.testing.assert_array_equal(vectors, count_vectors.of_counts(counts, 2, seed=0))


def test_pmi_written_out():
  counts = scipy.sparse.csr_matrix(np.array([[0, 3, 1], [3, 0, 0], [1, 0, 0]], float))
  vectors = count_vectors.of_counts(counts, 2, seed=0)
  pmi = np.log([1, 3 * 8 / (4 * 3), 1 * 8 / (4 * 1)])  # log n c_ij / (c_i c_j)
  left, values, _ = np.linalg.svd(np.array([[0, pmi[1], pmi[2]], [pmi[1], 0, 0], [pmi[2], 0, 0]]))
  wanted = left[:, :2] * np.sqrt(values[:2])
  wanted = (wanted - wanted.mean(axis=0)) / (wanted - wanted.mean(axis=0)).std()
  np.testing.assert_allclose(vectors @ vectors.T, wanted @ wanted.T, atol=1e-5)


def test_faults():
  given = tiny.get_config("tiny")
  given.model.update(token_table_start="counts", embedding_size=1024)
  given.checkpoint.init_from = "somewhere"
  with pytest.raises(UserError, match=r"(?s)fewer numbers a token.*brings a token table"):
    config_lib.resolve(given)


def test_a_run_starts_from_them(tmp_path):
  """The rows of the vocabulary are the vectors, as wide as random rows; special tokens' and padding rows are random."""
  (tmp_path / "run").mkdir()
  write_corpus(tmp_path / "corpus.txt", num_documents=20)
  given = small(Place(tmp_path), model__token_table_start="counts", data__tokenizer__vocab_size=90, train__num_steps=0,
                data__heldout_share=0.0, model__embedding_size=8)
  pretrain.pretrain(given, str(tmp_path / "run"))
  config = config_lib.resolve(given)
  _, params = checkpoints.load_params(str(tmp_path / "run"))
  data = inputs.open_data(config, str(tmp_path / "run"))
  wanted, table = inputs.count_vectors(data, config), params["discriminator"]["embeddings"]["token"]["embedding"]
  is_word = wanted.any(axis=1)
  assert is_word.any() and not is_word[list(data.tokenizer.special_ids)].any()
  np.testing.assert_allclose(table[:len(wanted)][is_word], wanted[is_word], atol=1e-5)
  np.testing.assert_allclose(wanted[is_word].std(), config.model.initializer_range, rtol=1e-5)
  assert 0 < np.abs(np.delete(table, np.flatnonzero(is_word), axis=0)).max() <= 2.3 * config.model.initializer_range
