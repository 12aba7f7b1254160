"""Public bug reports about other encoder code that this project must survive, and the test that shows each.

COVERED names the tests; reports 16 and 25 have theirs here.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import config as config_lib
from electra_jax import sharding
from electra_jax.data import shards, tokenizers
from electra_jax.data.sources import documents
from electra_jax.errors import UserError
from electra_jax.models.embeddings import position_vectors
from electra_jax.objectives.base import Objective, Phase
from electra_jax.training import evaluation
from tests.conftest import ROOT
from tests.data.fakes import FakeTokenizer

COVERED = {  # report: file of tests -> names
  "1 special tokens are masked": {"data/test_masking.py": ["test_bug_1_special_tokens_are_never_masked"]},
  "2 padding is masked or attended to": {
    "data/test_masking.py": ["test_number_of_targets", "test_bug_2_padding_does_not_matter"],
    "models/test_parity.py": ["test_padding_does_not_change_real_tokens"]},
  "3 random replacement draws special ids": {
    "data/test_masking.py": ["test_bug_3_random_tokens_are_ordinary",
                             "test_vocabulary_without_ordinary_tokens_masks_nothing"]},
  "7 label where the sample is the original": {
    "objectives/test_objectives.py": ["test_replaced_label_when_the_sample_is_the_original"]},
  "9 only the generator learns": {
    "objectives/test_objectives.py": ["test_who_gets_a_gradient",
                                      "test_generator_body_does_not_see_the_discriminator"]},
  "10 the random segment of NSP is the true continuation": {
    "data/test_pairs.py": ["test_bug_10_one_document_is_refused", "test_bug_10_two_documents_of_one_sentence",
                           "test_bug_10_copies_of_one_document_have_no_negatives",
                           "test_bug_10_a_repeated_sentence_elsewhere_is_not_random"]},
  "13 Unicode's line separators change the number of lines": {
    "data/test_documents.py": ["test_lines", "test_jsonl_field_and_line_ends"],
    "data/test_fuzz_readers.py": ["test_lines_are_those_of_universal_newlines"],
    "test_bug_reports.py": ["test_marks_and_control_characters_are_no_tokens"]},
  "16 RoBERTa's positions": {
    "test_bug_reports.py": ["test_roberta_positions_start_behind_the_padding_id",
                            "test_a_position_table_of_514_takes_512_tokens"]},
  "18 mean of means in accumulation and over devices": {
    "test_pretrain.py": ["test_accumulation_divides_by_the_global_target_count",
                         "test_one_step_is_the_same_on_every_mesh"],
    "test_metrics.py": ["test_totals_are_not_means_of_means", "test_a_batch_without_targets_and_no_targets_at_all"]},
  "19 resume repeats or reorders data": {
    "test_pretrain.py": ["test_killed_and_restarted_equals_uninterrupted_bit_for_bit"],
    "data/test_pipeline.py": ["test_every_example_once_per_epoch_over_processes"]},
  "22 LAMB's and decay's exclusions": {
    "optim/test_optim.py": ["test_trust_ratio_leaves_layer_norms_and_biases_alone", "test_zero_norms_have_ratio_one",
                            "test_first_adam_step"]},
  "25 the last batch of an evaluation": {
    "test_bug_reports.py": ["test_evaluation_is_a_mean_over_examples"],
    "data/test_pipeline.py": ["test_evaluation_sees_every_example_once"]},
}


@pytest.mark.parametrize("report", COVERED)
def test_every_report_has_a_test(report):
  for file, names in COVERED[report].items():
    text = (ROOT / "tests" / file).read_text()
    assert all(f"def {name}(" in text for name in names), file


def test_marks_and_control_characters_are_no_tokens(tmp_path):
  (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
  (tmp_path / "a.txt").write_bytes("\ufeffa\0 \ufffdb\r\nb\ufeff a".encode())
  tokenizer = tokenizers.load_tokenizer(str(tmp_path / "vocab.txt"))
  document, = documents.read_documents(str(tmp_path / "a.txt"))
  assert [tokenizer.tokens(ids) for ids in tokenizer.encode_batch(document)] == [["a", "b"], ["b", "a"]]


def test_roberta_positions_start_behind_the_padding_id():
  ids = np.array([[0, 9064, 6, 328, 2, 1, 1]])
  rows = jnp.arange(514.0)[:, None]
  assert position_vectors(rows, jnp.asarray(ids != 1), offset=2)[0, :, 0].tolist() == [2, 3, 4, 5, 6, 1, 1]


def test_a_position_table_of_514_takes_512_tokens():
  from configs import roberta_base

  given = roberta_base.get_config()
  assert (given.model.max_position_embeddings, given.data.sequence_length) == (514, 512)
  config_lib.resolve(given)
  given.data.sequence_length = 513
  with pytest.raises(UserError, match="longer than the position table's 512 usable rows"):
    config_lib.resolve(given)
  rows = jnp.arange(514.0)[:, None]
  assert position_vectors(rows, jnp.ones((1, 512), bool), offset=2)[0, -1, 0] == 513
  with pytest.raises(ValueError, match="513 tokens from position row 2 do not fit a table of 514 rows"):
    position_vectors(rows, jnp.ones((1, 513), bool), offset=2)


def accuracy_of(flags, batch_size, mesh, folder):
  """What `evaluate` reports for an objective that is right where an example's word is "a"."""
  from configs import tiny

  given = tiny.get_config("tiny")
  (folder / "corpus.txt").write_text("\n\n".join(["a" if flag else "b" for flag in flags] + ["c"]))
  given.data.update(path=str(folder / "corpus.txt"), format="ELECTRA", sequence_length=8, heldout_share=1 - 1e-9,
                    num_workers=1)
  given.eval.update(batch_size=batch_size, max_examples=0)
  config, tokenizer = config_lib.resolve(given), FakeTokenizer()
  shards.prepare(config.data, tokenizer, str(folder / "shards"), seed=0)
  heldout = shards.open_shards(str(folder / "shards"), "heldout", config.data, tokenizer)
  assert len(heldout) == len(flags)

  def loss(params, batch, rng, train, num_targets):
    real = batch["attention_mask"][:, 0].astype(jnp.float32)
    right = (batch["input_ids"][:, 1] == tokenizer.ids["a"]) * real
    return jnp.zeros(()), {"mlm/accuracy": (right.sum(), real.sum())}

  data = types.SimpleNamespace(heldout=heldout, tokenizer=tokenizer, unigram_entropy=0.0)
  objective = Objective(lambda *_: {}, lambda batch: {}, (Phase(1, loss),))
  run = types.SimpleNamespace(config=config, objective=objective, mesh=mesh, eval_key=jax.random.key(0),
                              shared_dtype=None, unstack=lambda state: state)
  with jax.set_mesh(mesh):
    return evaluation.make(run, data)(types.SimpleNamespace(params={}))["mlm/accuracy"]


@pytest.mark.parametrize(("flags", "batch_size", "accuracy"), [
  ([1, 1, 1, 1, 0, 0, 0, 0, 1, 1], 4, 0.6),  # 0.5 if the last batch were dropped, 0.667 as a mean of means
  ([1, 0, 1], 32, 2 / 3)])  # fewer examples than a batch
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 1, 2), (2, 2, 2)])
def test_evaluation_is_a_mean_over_examples(flags, batch_size, accuracy, shape, tmp_path):
  devices = jax.devices()[:np.prod(shape)]
  mesh = sharding.make_mesh(dict(zip(sharding.MESH_AXES, shape)), devices)
  assert accuracy_of(flags, batch_size, mesh, tmp_path) == pytest.approx(accuracy)
