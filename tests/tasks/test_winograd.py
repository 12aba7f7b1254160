"""Is WSC ranked as RoBERTa's WNLI: SuperGLUE's spans, the masked LM's likelihoods, Kocijan et al.'s loss?"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from configs import bert_original_base
from configs.finetune import glue as recipe
from electra_jax import config as config_lib
from electra_jax import finetune, tasks
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.finetuning import losses, predictions, pretrained
from electra_jax.models.bert import Bert, make_transformer_config
from electra_jax.tasks import batches, pronouns, winograd
from electra_jax.tools import export
from tests.tasks.fake_tokenizer import Words, find_phrases
from tests.workdirs import save_random_params

TROPHY = "The trophy does not fit in the case because it is too big, and it is new."
ROWS = [(TROPHY, "The trophy", "it", 9, True), (TROPHY, "the case", "it", 9, False),
        ("The dog crossed the mat, for It was wet.", "the mat", "it", 6, True),
        ("The dog crossed the mat, for It was wet.", "The dog", "it", 6, False)]


def write(root):
  """WSC's three files with the same rows, in training 40 times; those of test without labels."""
  (root / "WSC").mkdir()
  for name, copies in (("train", 40), ("val", 1), ("test", 1)):
    lines = [{"text": text, "idx": number, "target": {"span1_text": phrase, "span1_index": 0, "span2_text": pronoun,
                                                      "span2_index": place}, "label": label}
             for number, (text, phrase, pronoun, place, label) in enumerate(ROWS)]
    for line in lines if name == "test" else ():
      del line["label"]
    (root / "WSC" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) * copies)


@pytest.fixture(autouse=True)
def finder(monkeypatch):
  monkeypatch.setattr(pronouns, "make_finder", lambda: find_phrases)


def config_of(root, **keys):
  c = recipe.get_config("wsc,roberta")
  c.train.update(batch_size=8, compute_dtype="float32")
  c.eval.batch_size, c.data.reader = 8, "threads"
  c.log.tensorboard = False
  c.task.update(data_dir=str(root), max_length=32, num_epochs=1.0, num_seeds=1, **keys)
  return c


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  root = tmp_path_factory.mktemp("wsc")
  write(root)
  return root


class Masks(Words):
  """Words with a mask."""

  mask_id = 4


def test_examples_and_features_written_out(place):
  task = tasks.make(config_of(place).task)
  train = task.read("train")
  assert [example.texts for example in train[:2]] == [
    ("The trophy does not fit in the case because ", "it", " is too big, and it is new.", "The trophy", "the case"),
    ("The dog crossed the mat, for ", "It", " was wet.", "the mat", "The dog")]
  (feature,) = task.featurize(train[1], Masks(), 32)
  before, after = [10 + len(word) for word in ("The", "dog", "crossed", "the", "mat,", "for")], [13, 14]
  assert feature["input_ids"] == [[1, *before, 4, 4, *after, 2]] * 2
  assert [ids[:3] for ids in feature["masked_ids"]] == [[13, 13, -1]] * 2  # the mat, the dog: words of three letters
  assert [places[:3] for places in feature["masked_positions"]] == [[7, 8, 0]] * 2
  dev = task.read("dev")
  assert [example.label for example in dev] == ["true", "false"] * 2
  judged = task.featurize(dev[1], Masks(), 32)
  assert [row["masked_ids"][0][:2] for row in judged] == [[13, 14], [13, 16]]  # the case, against The trophy
  short = task.featurize(dev[0], Masks(), 14)[0]
  assert short["_was_cut"] and short["input_ids"][0] == [
    1, *(10 + len(word) for word in TROPHY.split()[:9]), 4, 4, 12, 2]


def test_the_word_number_says_which_pronoun_is_meant():
  assert winograd.find_pronoun(TROPHY, "it", 9, "") == (44, 46)
  assert winograd.find_pronoun(TROPHY, "It,", 14, "") == (63, 65)
  with pytest.raises(UserError, match=r"wsc.jsonl:3.*'them'"):
    winograd.find_pronoun(TROPHY, "them", 9, "wsc.jsonl:3")


def test_decoding_and_the_file_for_the_server(place):
  task = tasks.make(config_of(place).task)
  examples = task.read("test")
  rows = [row | {"_example": i} for i, e in enumerate(examples) for row in task.featurize(e, Masks(), 32)]
  answers = task.decode({"mlm_head": np.array([[-1.0], [-2.0], [-2.0], [-1.0]] * 2)}, rows, examples)
  assert answers == ["true", "false"] * 2
  assert task.submission("test", answers, examples)["WSC.jsonl"].splitlines()[0] == '{"idx": 0, "label": "True"}'


def test_the_loss_is_kocijans():
  """-log P(right) + 5 max(0, log P(other) - log P(right) + 0.4): also where the margin is kept it asks for more."""
  scores = jnp.array([[-3.0, -6.0], [-1.0, -1.2], [-2.0, -1.0]])
  np.testing.assert_allclose(losses.phrase({"mlm_head": scores}, {}), [3, 1 + 5 * 0.2, 2 + 5 * 1.4], rtol=1e-6)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  """The workdir of a masked LM of one layer with random parameters."""
  root = tmp_path_factory.mktemp("bert")
  given = bert_original_base.get_config("tiny")
  given.model.update(hidden_size=32, embedding_size=32, num_hidden_layers=1, intermediate_size=32)
  given.data.tokenizer.update(kind="wordpiece", vocab_size=200)
  config = config_lib.resolve(given)
  config_lib.save(str(root / "config.json"), given, config)
  text = [row[0] for row in ROWS] * 20
  tokenizer = tokenizers.train_tokenizer(config.data.tokenizer, iter(text), str(root / "tokenizer"), seed=0)
  save_random_params(str(root), config, tokenizer, 1)
  return str(root)


def test_scores_are_the_pretrained_masked_lms(bert, place):
  start, c = pretrained.load(bert), config_of(place, init_from=bert)
  task = tasks.make(c.task)
  sizes = FrozenConfigDict(start.model | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
  model = Bert(make_transformer_config(sizes, num_tokens=start.tokenizer.vocab_size, dtype="float32"), ("mlm_head",))
  params = pretrained.init_params(jax.random.key(0), model.config, ("mlm_head",), start)
  (feature,) = task.featurize(task.read("train")[0], start.tokenizer, 32)
  batch = jax.tree.map(jnp.asarray, batches.collate([feature], 1, 32, start.tokenizer.pad_id, task.head))
  run = predictions.FineTuneSetup(c, task, start, model, None, None, None)
  found = jax.jit(lambda params: predictions.apply(run, params, batch, train=False)["mlm_head"])(params)
  flat = {name: batch[name][0] for name in ("input_ids", "token_type_ids", "attention_mask", "masked_positions")}
  logits = jax.jit(lambda params: model.apply({"params": params}, flat, flat["input_ids"], False, method="mlm_logits"))(
    start.encoder)
  wanted = []
  for row, padded in zip(np.asarray(jax.nn.log_softmax(logits)), feature["masked_ids"]):
    ids = [token for token in padded if token >= 0]
    wanted.append(np.mean([row[place, token] for place, token in enumerate(ids)]))
  assert wanted[0] != wanted[1]
  np.testing.assert_allclose(found, [wanted], rtol=1e-5)
  discriminator = start._replace(encoder={name: x for name, x in start.encoder.items() if name != "mlm_head"})
  with pytest.raises(UserError, match="needs a masked LM"):
    pretrained.init_params(jax.random.key(0), model.config, ("mlm_head",), discriminator)
  assert "mlm_head" not in pretrained.init_params(jax.random.key(0), model.config, (), start)["encoder"]


def test_from_the_files_to_the_answers(bert, place, tmp_path):
  c = config_of(place, init_from=bert, write_test_predictions=True)
  c.optimizer.learning_rate = 1e-2
  c.task.num_epochs = 2.0  # of ten updates
  summary = finetune.finetune(c, str(tmp_path / "run"))
  assert summary["accuracy"]["median"] == 1.0 and (tmp_path / "run/submission.zip").exists()
  assert export.export(str(tmp_path / "run"), str(tmp_path / "out")).left_out == []  # it is a masked LM still
  assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertForMaskedLM"]
  assert "mlm_head" in pretrained.load(str(tmp_path / "out")).encoder
