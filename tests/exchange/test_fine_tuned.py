"""Do models fine-tuned with transformers say here what they say there? Classes of texts and pairs, answers."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from ml_collections import ConfigDict

from configs import bert_small
from electra_jax import checkpoints, fine_tuned, inference
from electra_jax.data.sentences import Sentence
from electra_jax.errors import UserError
from electra_jax.tools import predict
from electra_jax.tools.predict_tasks import TASKS
from electra_jax.train_state import TrainState
from tests.workdirs import make_workdir

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
SIZES = dict(vocab_size=len(WORDS), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
             max_position_embeddings=64, initializer_range=0.3)
CONTEXT = " ".join("abcdefghijklmnopqrstuvwxyz"[i * i % 26] for i in range(100))


def saved(folder, config, model_class):
  """A random model with everything away from its start, in a folder with its vocabulary."""
  torch.manual_seed(0)
  model = model_class(config).eval()
  for parameter in model.parameters():
    parameter.data += 0.1 * torch.randn_like(parameter)
  model.save_pretrained(folder)
  (folder / "vocab.txt").write_text("\n".join(WORDS))
  return model, inference.load(str(folder))


def ids_of(text):
  return [WORDS.index(word) for word in text.split()]


@pytest.mark.parametrize("family", ["Bert", "Electra"])
def test_classes_of_texts_and_pairs(tmp_path, family):
  config = getattr(transformers, f"{family}Config")(**SIZES, num_labels=3, **(
    dict(embedding_size=16) if family == "Electra" else {}))
  model, run = saved(tmp_path, config, getattr(transformers, f"{family}ForSequenceClassification"))
  items = [{"text": "a b c"}, {"text": "a b", "pair": "x y z y"}]
  (tmp_path / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
  found = [TASKS["classify"].record(one) for _, one in predict.answer_file(
    run, str(tmp_path / "in.jsonl"), TASKS["classify"])]
  for item, one in zip(items, found):
    first, second = [2, *ids_of(item["text"]), 3], [*ids_of(item.get("pair", "")), *[3] * ("pair" in item)]
    with torch.no_grad():
      logits = model(torch.tensor([first + second]),
                     token_type_ids=torch.tensor([[0] * len(first) + [1] * len(second)])).logits[0]
    np.testing.assert_allclose(list(one["probabilities"].values()), logits.softmax(-1), atol=1e-5)
    assert one["label"] == f"LABEL_{logits.argmax()}" and one["text"] == item["text"]


def test_answers_come_from_every_window(tmp_path, monkeypatch):
  monkeypatch.setattr(fine_tuned, "WINDOW_STRIDE", 20)
  model, run = saved(tmp_path, transformers.BertConfig(**SIZES), transformers.BertForQuestionAnswering)
  (one,) = TASKS["question"].answer(run, [{"question": "a b", "context": CONTEXT}])
  context, best = ids_of(CONTEXT), (-np.inf, None)
  nulls = []
  for begin in range(0, 61, 20):  # 64 positions, of which 5 are the question's and the separators'
    part = context[begin:begin + 59]
    with torch.no_grad():
      out = model(torch.tensor([[2, *ids_of("a b"), 3, *part, 3]]), token_type_ids=torch.tensor([[0] * 4 + [1] * (
        len(part) + 1)]))
    start, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
    nulls.append(start[0] + end[0])
    best = max(best, *((start[4 + i] + end[4 + j], (begin + i, begin + j)) for i in range(len(part))
                       for j in range(i, min(i + 30, len(part)))))
  first, last = best[1]
  assert one.span.text == CONTEXT[2 * first:2 * last + 1] == CONTEXT[one.span.start:one.span.end]
  np.testing.assert_allclose((one.span.score, one.span.no_answer_score), (best[0], min(nulls)), rtol=1e-4)


def test_two_separators_for_roberta():
  class Config:
    class data:
      sequence_length = 64

  class Words:
    kind, cls_id, sep_id, mask_id = "byte_bpe", 0, 2, 9

    def encode_words(self, text):
      return [5] * len(text.split()), [(0, 1)] * len(text.split())

  run = inference.Run(Config, Words(), None, None, None)
  assert fine_tuned.encode_pair(run, "a b", "c").sentence.ids == [0, 5, 5, 2, 2, 5, 2]
  (window,) = fine_tuned.encode_windows(run, "a", "c d")
  assert window == fine_tuned.Pair(Sentence("c d", [0, 5, 2, 2, 5, 5, 2], [(0, 0)] * 4 + [(0, 1)] * 2 + [(3, 3)], []),
                                   4)


def test_mistakes(tmp_path):
  _, run = saved(tmp_path, transformers.BertConfig(**SIZES), transformers.BertForQuestionAnswering)
  with pytest.raises(UserError, match="no classification head") as error:
    TASKS["classify"].answer(run, [{"text": "a"}])
  assert error.value.got == "span head"
  for item, said in (({"question": "a " * 60, "context": "b"}, "question is too long"),
                     ({"question": "a", "context": " "}, "context is empty"),
                     ({"question": "", "context": "b"}, "sentence is empty")):
    with pytest.raises(UserError, match=said):
      TASKS["question"].check(run, item)
  with pytest.raises(UserError, match="no masked LM"):
    inference.fill_mask(run, ["a [MASK]"])


def test_fine_tuned_runs_of_ours(tmp_path, tmp_path_factory):
  """A workdir with labels.json: the head's kernel decides, with and without a layer before it."""
  workdir = shutil.copytree(make_workdir(tmp_path_factory.getbasetemp(), bert_small, "wordpiece"), tmp_path / "run")
  step, params = checkpoints.load_params(str(workdir))
  shutil.rmtree(workdir / "checkpoints")
  width = params["encoder"]["layer_00"]["feed_forward"]["output"]["bias"].shape[0]
  head = {"output": {"kernel": np.random.default_rng(0).standard_normal((width, 2)).astype(np.float32),
                     "bias": np.array([0.5, 0], np.float32)}}
  encoder = {name: value for name, value in params["encoder"].items() if not name.endswith("_head")}
  saved = checkpoints.Checkpoints(str(workdir), ConfigDict(dict(keep_last=1, keep_every_steps=0, every_steps=1)))
  saved.save(TrainState(np.int32(step), {"encoder": encoder | {"classification_head": head}}, {}), step)
  saved.close()
  record = json.loads((workdir / "config.json").read_text())
  record["resolved"]["task"] = {"pooler": "none"}
  (workdir / "config.json").write_text(json.dumps(record))
  labels = {"task": "sst2", "head": "classification", "num_labels": 2, "label_names": ["bad", "good"]}
  (workdir / "labels.json").write_text(json.dumps(labels))
  run = inference.load(workdir)
  assert run.config.objective.name == "sst2"
  (one,) = TASKS["classify"].answer(run, [{"text": "the cat"}])
  batch = jax.tree.map(jnp.asarray, inference.make_batch(run, [inference.encode(run, "the cat")]))
  logits = jax.jit(run.network.encode)(run.params, batch, batch["input_ids"])[0, 0] @ head["output"]["kernel"]
  np.testing.assert_allclose(one.classes.values, jax.nn.softmax(logits + head["output"]["bias"]), atol=1e-5)
  assert set(TASKS["classify"].record(one)["probabilities"]) == {"bad", "good"}
  (workdir / "labels.json").write_text("{}")
  with pytest.raises(UserError, match="labels of the fine-tuned run"):
    inference.load(workdir)
