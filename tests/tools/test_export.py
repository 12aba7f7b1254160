"""Does a run survive the way out to transformers and back, bit for bit, and is nothing harmed on the way?"""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import transformers
from flax import serialization

from configs import base, bert_original_base, bert_small, roberta_base, tiny
from electra_jax import config as config_lib
from electra_jax import metrics, sharding
from electra_jax.data import sentences, tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import formats, hf, hf_config, published
from electra_jax.finetuning import pretrained
from electra_jax.inference import pretraining_heads
from electra_jax.models.bert import Bert, make_transformer_config
from electra_jax.tasks import HEADS
from electra_jax.tools import export, export_networks, import_weights
from electra_jax.training import checkpoints
from electra_jax.training.train_state import TrainState
from tests.workdirs import TEXT, records, save_random_params

RUNS = {  # recipe, its change, kind of vocabulary, transformers' classes
  "electra": (tiny, {}, "sentencepiece", {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}),
  "electra, shared embeddings": (tiny, {"objective.weight_tying": "embeddings"}, "sentencepiece", {
    "discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}),
  "electra, one encoder": (base, {"objective.weight_tying": "all", "generator.width_fraction": 1.0}, "wordpiece", {
    "discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}),
  "roberta": (roberta_base, {}, "byte_bpe", {"": "RobertaForMaskedLM"}),
  "bert": (bert_original_base, {}, "wordpiece", {"": "BertForPreTraining"}),
  "bert, without NSP": (bert_small, {}, "sentencepiece_bpe", {"": "BertForMaskedLM"}),
  "bert, projected": (bert_small, {"embedding_size": 32}, "wordpiece", {"": "ElectraForMaskedLM"}),
}


def given_of(name):
  recipe, changes, kind, _ = RUNS[name]
  given = recipe.get_config("tiny")
  given.update_from_flattened_dict({key if "." in key else f"model.{key}": value for key, value in changes.items()})
  given.data.tokenizer.update(kind=kind, vocab_size=400)
  given.model.num_hidden_layers = 2 if name == "electra" else 1
  return given


@pytest.fixture(scope="module")
def workdir_of(tmp_path_factory):
  """name -> a run's folder with random parameters at step 7; made once."""
  root, made = tmp_path_factory.mktemp("runs"), {}

  def make(name):
    if name not in made:
      workdir = root / str(len(made))
      workdir.mkdir()
      given = given_of(name)
      config = config_lib.resolve(given)
      config_lib.save(str(workdir / "config.json"), given, config)
      tokenizer = tokenizers.train_tokenizer(config.data.tokenizer, iter(TEXT * 20), str(workdir / "tokenizer"), seed=0)
      save_random_params(str(workdir), config, tokenizer, step=7)
      made[name] = str(workdir)
    return made[name]

  return make


def params_of(workdir):
  return {sharding.path_name(path): np.asarray(leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(checkpoints.load_params(workdir)[1])}


def through_transformers(folder, out):
  """Loaded and saved again by transformers; its class and, for the vocabulary, our files."""
  (name,) = json.loads((folder / "config.json").read_text())["architectures"]
  model, said = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
  assert not any(said.values()), said
  model.save_pretrained(out)
  for file in ("tokenizer_facts.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.model"):
    if (folder / file).exists():
      (out / file).write_bytes((folder / file).read_bytes())
  return name


@pytest.mark.parametrize("name", RUNS)
def test_there_and_back_is_bitwise(workdir_of, tmp_path, name):
  workdir, classes = workdir_of(name), RUNS[name][-1]
  done = export.export(workdir, str(tmp_path / "out"))
  assert done.folders == [os.path.normpath(tmp_path / "out" / part) for part in classes] and not done.left_out
  for part, architecture in classes.items():
    (tmp_path / "again" / part).mkdir(parents=True)
    assert through_transformers(tmp_path / "out" / part, tmp_path / "again" / part) == architecture
  start = import_weights.import_weights(str(tmp_path / "again"), given_of(name), str(tmp_path / "imported"))
  assert not start.fresh and not start.unused
  before, after = params_of(workdir), params_of(str(tmp_path / "imported"))
  num_tokens = pretraining_heads.load(workdir).tokenizer.vocab_size
  assert before.keys() == after.keys()
  for path, value in before.items():
    rows = slice(num_tokens) if path.endswith(("token/embedding", "mlm_head/output_bias")) else ...
    np.testing.assert_array_equal(after[path][rows], value[rows], err_msg=path)
  record = json.loads((tmp_path / "imported/config.json").read_text())
  assert record["imported"]["weights"] == str(tmp_path / "again")
  run = pretraining_heads.load(str(tmp_path / "imported"))  # a run like any other
  assert run.step == 0 and run.tokenizer.fingerprint == pretraining_heads.load(workdir).tokenizer.fingerprint


def test_vocabulary_is_cut_and_card_is_complete(workdir_of, tmp_path):
  workdir = workdir_of("electra")
  writer = metrics.MetricWriter(workdir, config_lib.load(workdir).log)
  for step, auc in ((5, 0.61), (7, 0.73), (9, 0.99)):
    writer.write(step, "eval", {"rtd/auc": auc})
  writer.close()
  export.export(workdir, str(tmp_path / "out"), step=7)
  folder = tmp_path / "out/discriminator"
  config = json.loads((folder / "config.json").read_text())
  table = safetensors.numpy.load_file(folder / "model.safetensors")["electra.embeddings.word_embeddings.weight"]
  assert len(table) == config["vocab_size"] == pretraining_heads.load(workdir).tokenizer.vocab_size < 400
  card = (folder / "README.md").read_text()
  for part in ("ElectraForPreTraining", "`pydoc:`", "7 of 40", "FLOPs", "| rtd/auc | 0.73 |", "library_name"):
    assert part in card, part
  assert str(tmp_path) not in card


def test_msgpack_has_our_names(workdir_of, tmp_path):
  workdir = workdir_of("bert")
  export.export(workdir, str(tmp_path / "out"), file_format="msgpack")
  nested = serialization.msgpack_restore((tmp_path / "out/params.msgpack").read_bytes())
  found = {sharding.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(nested)}
  wanted = params_of(workdir)
  assert found.keys() == wanted.keys() and all(np.array_equal(found[path], wanted[path]) for path in wanted)
  assert tokenizers.load_tokenizer(str(tmp_path / "out/tokenizer")).kind == "wordpiece"


def test_nothing_is_harmed(workdir_of, tmp_path, monkeypatch):
  workdir, out = workdir_of("bert"), tmp_path / "out"
  out.mkdir()
  (out / "mine.txt").write_text("precious")
  for write in (lambda: export.export(workdir, str(out)),
                lambda: import_weights.import_weights(workdir, given_of("bert"), str(out))):
    with pytest.raises(UserError):
      write()
  assert [path.name for path in tmp_path.iterdir()] == ["out"] and (out / "mine.txt").read_text() == "precious"

  def full(*_, **__):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(safetensors.numpy, "save_file", full)
  with pytest.raises(UserError, match="cannot be written") as error:
    export.export(workdir, str(tmp_path / "new"))
  assert "No space left" in error.value.got and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_unknown_steps_formats_and_networks(workdir_of, tmp_path):
  workdir, out = workdir_of("roberta"), str(tmp_path / "out")
  with pytest.raises(UserError, match="No checkpoint to read"):
    export.export(workdir, out, step=8)
  config = config_lib.load(workdir)
  projected = config.model.to_dict() | {"embedding_size": 32}
  with pytest.raises(UserError, match="No class of transformers computes"):
    hf_config.family_of(projected, {"mlm_head"})
  with pytest.raises(UserError, match="No class of transformers computes") as error:  # own.py's head on a RoBERTa
    hf_config.family_of(config.model.to_dict(), {"classification_head"}, pooler="gelu")
  assert "task.pooler=tanh" in error.value.fix and not os.path.exists(out)


def test_starting_from_a_folder(workdir_of, tmp_path):
  """checkpoint.init_from: the folder itself; other vocabularies are refused, a missing one is said."""
  workdir = workdir_of("electra")
  export.export(workdir, str(tmp_path / "out"))
  run = pretraining_heads.load(workdir)
  zeros = jax.tree.map(jnp.zeros_like, run.params)
  params, said = published.start_params(str(tmp_path / "out"), zeros, run.tokenizer)
  assert formats.is_published(str(tmp_path / "out")) and not formats.is_published(workdir)
  assert said == f"Starting from the published weights in {tmp_path / 'out'}."
  np.testing.assert_array_equal(params["generator"]["mlm_head"]["dense"]["kernel"],
                                run.params["generator"]["mlm_head"]["dense"]["kernel"])
  other = pretraining_heads.load(workdir_of("roberta")).tokenizer
  with pytest.raises(UserError, match="another vocabulary than the published weights"):
    published.start_params(str(tmp_path / "out"), zeros, other)
  for part in ("discriminator", "generator"):
    for file in ("tokenizer_facts.json", "sentencepiece.model", "tokenizer.json"):
      (tmp_path / "out" / part / file).unlink()
  assert "vocabulary could not be compared" in published.start_params(str(tmp_path / "out"), zeros, run.tokenizer)[1]
  with pytest.raises(UserError, match="no vocabulary next to it"):
    import_weights.import_weights(str(tmp_path / "out"), given_of("electra"), str(tmp_path / "imported"))
  given = given_of("electra")
  given.data.tokenizer.path = os.path.join(workdir, "tokenizer")
  start = import_weights.import_weights(str(tmp_path / "out"), given, str(tmp_path / "imported"))
  assert not start.fresh


FINE_TUNED = {  # recipe, pooler, the task's head, heads of the network, transformers' class
  "electra, linear": (tiny, "none", "classification", ("classification_head",), "ElectraForSequenceClassification"),
  "bert": (bert_original_base, "tanh", "multiple_choice", ("multiple_choice_head",), "BertForMultipleChoice"),
  "roberta": (roberta_base, "tanh", "span", ("span_head", "answerable_head"), "RobertaForQuestionAnswering"),
}


@pytest.mark.parametrize("name", FINE_TUNED)
def test_fine_tuned_heads(tmp_path, name):
  """A fine-tuned run's folder, its network and that of transformers."""
  import torch

  recipe, pooler, head, heads, architecture = FINE_TUNED[name]
  given = recipe.get_config("tiny")
  given.objective.name = "mlm"
  given.data.tokenizer.update(kind="wordpiece" if recipe is not roberta_base else "byte_bpe", vocab_size=400)
  given.task.update(name="own_classification", init_from="somewhere", train_path="a.jsonl", pooler=pooler,
                    max_length=64)
  config = config_lib.resolve(given)
  workdir = tmp_path / "run"
  workdir.mkdir()
  config_lib.save(str(workdir / "config.json"), given, config)
  tokenizer = tokenizers.train_tokenizer(config.data.tokenizer, iter(TEXT * 20), str(workdir / "tokenizer"), seed=0)
  labels = ["no", "yes", "maybe"] if head == "classification" else []
  num_labels = {"classification": 3, "multiple_choice": 1, "span": 2}[head]
  (workdir / "labels.json").write_text(json.dumps(
    {"task": "own_classification", "head": head, "label_names": labels, "num_labels": num_labels}))
  transformer = dataclasses.replace(
    make_transformer_config(config.model, num_tokens=tokenizer.vocab_size, dtype="float32"), num_labels=num_labels,
    pooler=pooler)
  shapes = jax.eval_shape(lambda: pretrained.init_params(jax.random.key(0), transformer, heads, None))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda s: 0.2 * rng.standard_normal(s.shape).astype(np.float32), shapes)
  saved = checkpoints.Checkpoints(str(workdir), config.checkpoint)
  saved.save(TrainState(jnp.int32(1), params, {}), 1)
  saved.close()
  done = export.export(str(workdir), str(tmp_path / "out"))
  assert done.left_out == ["encoder/answerable_head"] * (head == "span")
  theirs, said = getattr(transformers, architecture).from_pretrained(tmp_path / "out", output_loading_info=True)
  assert not any(said.values()), said
  ids = jnp.asarray(np.random.default_rng(1).integers(5, tokenizer.vocab_size, (2, 12)))
  batch = {"input_ids": ids, "token_type_ids": jnp.zeros_like(ids), "attention_mask": jnp.ones(ids.shape, bool)}
  ours = jax.jit(lambda p: Bert(transformer, head_names=heads).apply(
    {"params": p}, batch, False, method="task_outputs"))(params["encoder"])[heads[0]]
  with torch.no_grad():
    given_ids = torch.tensor(np.asarray(ids)).long()
    out = theirs.eval()(given_ids[None] if head == "multiple_choice" else given_ids)
  logits = torch.stack([out.start_logits, out.end_logits], -1) if head == "span" else out.logits
  np.testing.assert_allclose(ours, logits.numpy().reshape(ours.shape), atol=1e-4, rtol=1e-4)
  if labels:
    assert theirs.config.id2label == dict(enumerate(labels))
  assert "fine-tuned on own_classification" in (tmp_path / "out/README.md").read_text()
  task, item = QUESTIONS[head]
  before, after = (records(pretraining_heads.load(str(folder)), task, [item])[0]
                   for folder in (workdir, tmp_path / "out"))  # tools/predict, of the run and of its export
  assert before.keys() == after.keys()
  for key in before.keys() & {"label", "choice", "answer"}:
    assert before[key] == after[key]
  if "probabilities" in before:
    values = [list(one["probabilities"].values()) if isinstance(one["probabilities"], dict) else one["probabilities"]
              for one in (before, after)]
    np.testing.assert_allclose(*values, atol=1e-5)


QUESTIONS = {"classification": ("classify", {"text": "the wet dog", "pair": "a cat"}),
             "multiple_choice": ("choose", {"text": "the dog", "choices": ["sat.", "rain and rain"]}),
             "span": ("question", {"question": "who sat?", "context": "rain fell on the cat and the dog all night."})}


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("head", ["classification", "multiple_choice", "span", "tagging"])
def test_every_head_of_every_family(tmp_path, family, head):
  """Written from the parameters of a fine-tuned run, and loaded by the class that config.json names, without a gap."""
  recipe = {"bert": bert_original_base, "roberta": roberta_base, "electra": tiny}[family]
  given = recipe.get_config("tiny")
  given.objective.name = "mlm"
  if family == "electra":  # with equal widths, spans and tags of an ELECTRA are those of a BERT
    given.model.embedding_size = 32
  given.task.update(name="own_classification", init_from="somewhere", train_path="a.jsonl", max_length=64,
                    pooler="none" if family == "electra" else "tanh")
  config = config_lib.resolve(given)
  labels = ["no", "yes"] if head in ("classification", "tagging") else []
  (tmp_path / "labels.json").write_text(json.dumps({"head": head, "label_names": labels}))
  row = tokenizers.TOKENIZERS["wordpiece"]
  tokenizer = row.tokenizer({"vocab.txt": "\n".join([*row.tokenizer.special_tokens, *"abc"]).encode()}, True)
  transformer = dataclasses.replace(make_transformer_config(config.model, num_tokens=8, dtype="float32"),
                                    num_labels=len(labels) or 1, pooler=config.task.pooler)
  shapes = jax.eval_shape(lambda: pretrained.init_params(jax.random.key(0), transformer, HEADS[head][0], None))
  params = {sharding.path_name(path): np.ones(leaf.shape, np.float32)
            for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
  exported = export_networks.ExportedRun(str(tmp_path), config, 1, tokenizer, params)
  found, left_out = export_networks.networks_of(exported)
  hf.write_network(str(tmp_path), found["encoder"])
  (name,) = found["encoder"].config["architectures"]
  assert name == hf_config.ARCHITECTURES[family][HEADS[head][0][0]]
  assert left_out == ["encoder/answerable_head"] * (head == "span")
  model, said = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
  assert not any(said.values()), said
  assert len(found["encoder"].tensors) == len(list(model.parameters()))


def test_an_export_answers_as_its_run_does(workdir_of, tmp_path):
  """tools/predict of a workdir and of what was exported from it: masks, replaced words, vectors."""
  workdir = workdir_of("electra")
  export.export(workdir, str(tmp_path / "out"))
  runs = pretraining_heads.load(workdir), pretraining_heads.load(str(tmp_path / "out"))
  for task, item in (("auto", {"text": "the [MASK] sat"}), ("embed", {"text": "the wet dog"})):
    before, after = (records(run, task, [item], top_k=3)[0] for run in runs)
    assert before.keys() == after.keys()
    if task == "auto":
      assert [c["id"] for c in before["masks"][0]["candidates"]] == [c["id"] for c in after["masks"][0]["candidates"]]
      np.testing.assert_allclose([w["replaced"] for w in before["words"]], [w["replaced"] for w in after["words"]],
                                 atol=2e-6)
    else:
      np.testing.assert_allclose(before["embedding"], after["embedding"], rtol=1e-4, atol=1e-5)


def test_encoded_texts_give_the_same_logits(workdir_of, tmp_path):
  """The whole chain: a text, AutoTokenizer, transformers' discriminator; and this run's own."""
  import torch

  workdir = workdir_of("electra")
  export.export(workdir, str(tmp_path / "out"))
  run, text = pretraining_heads.load(workdir), "the wet dog."
  batch = jax.tree.map(jnp.asarray, pretraining_heads.make_batch(run, [sentences.encode(run.tokenizer, text, 16)]))
  ours = np.asarray(jax.jit(run.network.rtd_logits)(run.params, batch, batch["input_ids"]))
  folder = tmp_path / "out/discriminator"
  model = transformers.AutoModelForPreTraining.from_pretrained(folder)
  ids = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
  with torch.no_grad():
    theirs = model(**ids).logits.numpy()
  np.testing.assert_allclose(ours[0, :theirs.size], theirs.ravel(), atol=1e-4, rtol=1e-4)
