"""Do the original BERT's recipe and DOC-SENTENCES run from text to evaluation, and go on after a stop?"""

import shutil

import pytest

from configs import bert_original_base, roberta_base
from electra_jax import config as config_lib
from electra_jax import metrics, pretrain
from electra_jax.data import pipeline
from electra_jax.training import inputs
from tests import fake_objective

pytestmark = pytest.mark.usefixtures("one_device")


def small(recipe, corpus, **data):
  given = recipe.get_config("tiny")
  given.model.update(hidden_size=32, embedding_size=32, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  given.data.update(path=str(corpus), max_documents=0, sequence_length=32, heldout_share=0.2, num_workers=1, **data)
  given.data.tokenizer.vocab_size = 300
  given.train.update(batch_size=8, num_steps=6, log_every_steps=2)
  given.optimizer.warmup_steps = 2
  given.checkpoint.every_steps = 3
  given.log.tensorboard = False
  return given


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  path = tmp_path_factory.mktemp("corpus") / "a.txt"
  words = ["the cat sat", "on the mat", "rain fell all day", "a dog came in", "nobody had seen it", "it was glad"]
  path.write_text("\n\n".join("\n".join(f"{words[(i * j) % 6]} and {words[(i + j) % 6]}" for j in range(2 + i % 7))
                              for i in range(60)))
  return path


@pytest.mark.parametrize("recipe, data", [
  (bert_original_base, {}), (bert_original_base, {"format": "SENTENCE-PAIR"}),
  (roberta_base, {"format": "DOC-SENTENCES"})], ids=["SEGMENT-PAIR", "SENTENCE-PAIR", "DOC-SENTENCES"])
def test_from_text_to_evaluation(recipe, data, corpus, tmp_path):
  given = small(recipe, corpus, **data)
  result = pretrain.pretrain(given, str(tmp_path / "run"))
  config = config_lib.load(str(tmp_path / "run"))
  data = inputs.open_data(config, str(tmp_path / "run"))
  passes = 8 if config.data.format == "SEGMENT-PAIR" else 1  # that are whole batches
  steps = round(passes * pipeline.steps_per_epoch(data.train, config.data, 8))
  real = sum(data.batch_at(step)["attention_mask"].sum() for step in range(steps))
  tokens = metrics.read_rows(str(tmp_path / "run"))[-1]["tokens"]
  assert tokens == pytest.approx(6 * real / steps) and tokens < 6 * 8 * 32  # padding is no token
  assert 2 < result["mlm/loss"] < 7
  if recipe is bert_original_base:
    assert 0.5 < result["nsp/loss"] < 0.9 and 0 <= result["nsp/accuracy"] <= 1


def test_a_run_with_token_batches_goes_on_bit_for_bit(corpus, tmp_path, quick_model):
  """The checkpoint of step 6 is lost: from step 3 on, batches of other shapes come in the same order again."""
  given = small(roberta_base, corpus, format="DOC-SENTENCES")
  given.data.tokenizer.update(kind="wordpiece", vocab_size=fake_objective.VOCABULARY)
  given.model.position_offset = 0
  whole = pretrain.pretrain(given, str(tmp_path))
  shutil.rmtree(tmp_path / "checkpoints" / "6")
  assert pretrain.pretrain(given, str(tmp_path)) == whole
