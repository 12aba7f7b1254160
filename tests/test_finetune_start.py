"""Does fine-tuning start from what it should? Layers, pooler and masked LM of an encoder; a run still in training."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from configs import large, tiny
from configs.finetune import glue
from electra_jax import config as config_lib
from electra_jax import finetune, main
from electra_jax.errors import UserError
from electra_jax.finetuning import pretrained
from electra_jax.models.bert import SENTENCE_HEADS, make_transformer_config
from electra_jax.tasks import pronouns
from electra_jax.tasks.base import HEADS
from electra_jax.training import checkpoints
from tests.test_finetune import recipe
from tests.workdirs import make_workdir


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A pre-trained workdir; the folder before it has no examples."""
  root = tmp_path_factory.getbasetemp()
  return root, make_workdir(root, tiny, "wordpiece")


def test_fresh_layers_are_the_top_ones_and_everything_below_stays(source):
  start = pretrained.load(source[1])
  c = config_lib.resolve(finetune.complete(recipe(source), start, num_features=8))
  transformer = make_transformer_config(c.model, num_tokens=start.tokenizer.vocab_size, dtype="float32")
  last = transformer.num_hidden_layers - 1

  def kept(seed, count):
    """Parts whose kernels and tables are those of the pre-training."""
    found = pretrained.init_params(jax.random.key(seed), transformer, (), start, count)["encoder"]
    assert found.keys() == start.encoder.keys()
    return {part for part, value in found.items()
            if all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(value), jax.tree.leaves(start.encoder[part])))}

  assert c.task.fresh_layers == last + 1  # so narrow an encoder; but layers that have learnt a task stay
  assert finetune.complete(recipe(source), start._replace(is_fine_tuned=True), num_features=8).task.fresh_layers == 0
  assert kept(0, 0) == set(start.encoder)
  assert kept(0, 1) == set(start.encoder) - {f"layer_{last:02d}"}
  assert kept(0, last + 1) == {"embeddings"}
  with pytest.raises(UserError, match="fresh_layers"):
    kept(0, last + 2)


def test_the_pooler_of_published_weights_goes_to_heads_over_a_sentence_alone(source):
  """ELECTRA's head over spans has a layer called `dense` as well, twice as wide."""
  start = pretrained.load(source[1])
  c = config_lib.resolve(finetune.complete(recipe(source), start, num_features=8))
  transformer = make_transformer_config(c.model, num_tokens=start.tokenizer.vocab_size, dtype="float32")
  transformer = dataclasses.replace(transformer, pooler="tanh")
  size = transformer.hidden_size
  pooler = {"kernel": np.full((size, size), 0.5, np.float32), "bias": np.full(size, 0.25, np.float32)}
  for name in sorted({name for names, _ in HEADS.values() for name in names} - {pretrained.MASKED_LM}):
    make = functools.partial(pretrained.init_params, jax.random.key(0), transformer, (name,))
    own, found = (make(one)["encoder"][name] for one in (start, start._replace(pooler=pooler)))
    assert jax.tree.map(np.shape, own) == jax.tree.map(np.shape, found), name
    if name in SENTENCE_HEADS:
      assert jax.tree.all(jax.tree.map(np.array_equal, found["dense"], pooler))
    else:
      assert jax.tree.all(jax.tree.map(np.array_equal, found, own)), name


def test_faults_of_the_task_are_told_together():
  given = glue.get_config("rte")
  given.task.data_dir = ""
  with pytest.raises(UserError) as caught:
    config_lib.resolve(given)
  assert "task.init_from is empty" in str(caught.value) and "task.data_dir is empty" in str(caught.value)


def test_tasks_of_a_pretraining_are_checked_before_it_begins(tmp_path):
  given = tiny.get_config("tiny")
  given.data.path, given.task.data_dir, given.eval.finetune_tasks = str(tmp_path), str(tmp_path), "rte,colla"
  (tmp_path / "RTE").mkdir()
  (tmp_path / "RTE/dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
  with pytest.raises(UserError, match=r"The task is unknown\.\n.*colla"):
    main.check_quickly(config_lib.resolve(given), str(tmp_path / "run"))
  (tmp_path / "RTE/dev.tsv").unlink()
  with pytest.raises(UserError, match=r"does not exist\.\n.*RTE/dev\.tsv"):
    main.check_quickly(config_lib.resolve(given), str(tmp_path / "run"))


def test_what_wsc_and_wnli_ranking_need_is_looked_for_before_the_pretraining(tmp_path, monkeypatch):
  def make_finder():
    raise UserError("No spaCy", got="", allowed="", fix="")

  monkeypatch.setattr(pronouns, "make_finder", make_finder)
  given = tiny.get_config("tiny")
  given.data.path, given.task.data_dir, given.eval.finetune_tasks = str(tmp_path), str(tmp_path), "wnli_ranking"
  with pytest.raises(UserError, match="No spaCy"):
    main.check_quickly(config_lib.resolve(given), str(tmp_path / "run"))
  given.eval.finetune_tasks = "rte,wsc"
  with pytest.raises(UserError, match="wsc, which needs a masked LM"):
    config_lib.resolve(given)
  given.objective.name = "mlm"
  config_lib.resolve(given)


def test_pretraining_can_fine_tune_a_checkpoint_on_the_way(source, monkeypatch):
  """The recipe of a pre-training becomes ELECTRA's Table 5; the encoder is the one that trains."""
  given = tiny.get_config("tiny")
  given.eval.update(finetune_tasks="cola,rte", finetune_every_steps=20)
  with pytest.raises(UserError, match=r"task\.data_dir"):
    config_lib.resolve(given)
  given.task.update(data_dir="glue", max_length=32)
  config = config_lib.resolve(given)
  assert [step for step in (10, 20, 30, 40) if finetune.is_due(config, step)] == [20, 40]
  workdir = source[1]
  _, params = checkpoints.load_params(workdir)
  start = pretrained.of_run(config_lib.load(workdir), pretrained.load(workdir).tokenizer, params)
  jax.tree.map(np.testing.assert_array_equal, start.encoder, pretrained.load(workdir).encoder)
  asked, asked_of = [], []

  def finetune_one(c, folder, start):
    resolved = config_lib.resolve(finetune.complete(c, start, 100))
    asked.append((resolved.task.name, resolved.task.max_length, folder))
    asked_of.append((c.optimizer.learning_rate, c.task.layer_decay, c.task.num_epochs, c.task.num_seeds,
                     c.task.warmup_share, c.train.batch_size, c.optimizer.name, c.seed))
    return {"accuracy": {"median": 0.5}}

  monkeypatch.setattr(finetune, "finetune", finetune_one)
  assert finetune.finetune_run(given, "runs/x", 20, start) == {"cola/accuracy": 0.5, "rte/accuracy": 0.5}
  assert asked == [(name, 32, f"runs/x/finetune/20/{name}") for name in ("cola", "rte")]
  assert asked_of == [(1e-4, 0.8, 3, 10, 0.1, 32, "adamw", 0), (1e-4, 0.8, 10, 10, 0.1, 32, "adamw", 0)]  # Table 5
  given = large.get_config()  # its Large column, and what the recipe of the pre-training asks for
  given.task.update(data_dir="glue", max_length=32, num_seeds=3)
  given.seed, given.eval.finetune_tasks = 7, "stsb,mnli"
  finetune.finetune_run(given, "runs/x", 20, start)
  assert asked_of[2:] == [(5e-5, 0.9, 10, 3, 0.1, 32, "adamw", 7), (5e-5, 0.9, 3, 3, 0.1, 32, "adamw", 7)]
