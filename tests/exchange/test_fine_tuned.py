"""Do fine-tuned models say here what transformers says? Classes, tags, choices, answers; and do our own runs?"""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
import torch
import transformers
from ml_collections import FrozenConfigDict

from configs import bert_small
from electra_jax import config as config_lib
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import hf_config
from electra_jax.finetuning import pretrained
from electra_jax.inference import pretraining_heads, task_heads
from electra_jax.models.bert import make_transformer_config
from electra_jax.tasks import HEADS, squad
from electra_jax.tools import export, predict
from electra_jax.tools.predict_tasks import TASKS, items_of
from electra_jax.training import checkpoints
from electra_jax.training.train_state import TrainState

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
SIZES = dict(vocab_size=len(WORDS), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
             max_position_embeddings=64, initializer_range=0.3)
CONTEXT = " ".join("abcdefghijklmnopqrstuvwxyz"[i * i % 26] for i in range(100))


def saved(folder, family, head, **changes):
  """A random model with everything away from its start, in a folder with its vocabulary."""
  torch.manual_seed(0)
  own = dict(embedding_size=16) if family == "electra" else {}
  config = getattr(transformers, f"{family.capitalize()}Config")(**SIZES | own | changes)
  model = getattr(transformers, hf_config.ARCHITECTURES[family][head])(config).eval()
  for parameter in model.parameters():
    parameter.data += 0.1 * torch.randn_like(parameter)
  model.save_pretrained(folder)
  (folder / "vocab.txt").write_text("\n".join(WORDS))
  return model, pretraining_heads.load(str(folder))


def ids_of(text):
  return [WORDS.index(word) for word in text.split()]


def theirs(model, first, second="", **options):
  """The outputs of [CLS] first [SEP] second [SEP]."""
  front, back = [2, *ids_of(first), 3], [*ids_of(second), *[3] * bool(second)]
  ids, types = torch.tensor([front + back]), torch.tensor([[0] * len(front) + [1] * len(back)])
  with torch.no_grad():
    return model(ids, token_type_ids=types, **options)


def records(run, task, folder, items):
  """What a .jsonl file of questions gives."""
  (folder / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
  return [TASKS[task].record(item, answer)
          for _, item, answer in predict.answer_file(run, str(folder / "in.jsonl"), TASKS[task])]


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_classes_of_texts_and_pairs(tmp_path, family):
  model, run = saved(tmp_path, family, "classification_head", num_labels=3)
  items = [{"text": "a b c"}, {"text": "a b", "pair": "x y z y"}]
  for item, one in zip(items, records(run, "classify", tmp_path, items)):
    logits = theirs(model, item["text"], item.get("pair", "")).logits[0]
    np.testing.assert_allclose(list(one["probabilities"].values()), logits.softmax(-1), atol=1e-5)
    assert one["label"] == f"LABEL_{logits.argmax()}" and one["text"] == item["text"] and "was_cut" not in one
  assert records(run, "classify", tmp_path, [{"text": "a " * 99}])[0]["was_cut"]


@pytest.mark.parametrize("problem, num_labels", [
  ("multi_label_classification", 3), ("multi_label_classification", 1), ("single_label_classification", 3),
  ("regression", 3), ("regression", 1), (None, 3), (None, 1)])
@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_scores_are_those_of_the_pipeline(tmp_path, family, problem, num_labels):
  sizes = {"roberta": dict(type_vocab_size=1, pad_token_id=1)}.get(family, {})
  model, run = saved(tmp_path, family, "classification_head", num_labels=num_labels, problem_type=problem, **sizes)
  tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
  pipeline = transformers.pipeline("text-classification", model, tokenizer=tokenizer, top_k=None)
  (expected,) = pipeline(["b q"])
  (one,) = records(run, "classify", tmp_path, [{"text": "b q"}])
  found = one.get("probabilities") or one.get("values") or {"LABEL_0": one["value"]}
  assert found == {row["label"]: pytest.approx(row["score"], abs=1e-4) for row in expected}
  is_apart = problem == "multi_label_classification" or (num_labels == 1 and problem != "regression")
  assert one.get("labels", []) == [name for name in found if is_apart and found[name] >= 0.5]


def test_tags_of_words(tmp_path):
  model, run = saved(tmp_path, "bert", "tagging_head", num_labels=3)
  listed, plain = records(run, "tag", tmp_path, [{"words": ["a", "b", "c"]}, {"words": "a b c"}])
  logits = theirs(model, "a b c").logits[0, 1:-1]
  assert listed == plain and listed["tags"] == [f"LABEL_{i}" for i in logits.argmax(-1)]
  np.testing.assert_allclose(listed["probabilities"], logits.softmax(-1).max(-1).values, atol=1e-5)
  (cut,) = records(run, "tag", tmp_path, [{"words": "a " * 70}])
  assert len(cut["tags"]) == len(cut["probabilities"]) == 70 and cut["probabilities"][61:] == [cut["probabilities"][61],
                                                                                               *[None] * 8]


def test_choices(tmp_path):
  model, run = saved(tmp_path, "electra", "multiple_choice_head")
  item = {"text": "a b c", "choices": ["x y", "z"], "question": "q r"}
  (one,) = records(run, "choose", tmp_path, [item])
  rows = [[2, *ids_of("a b c"), 3, *ids_of(f"q r {choice}"), 3] for choice in item["choices"]]
  rows[1].append(0)
  ids = torch.tensor([rows])
  types = torch.tensor([[[0] * 5 + [1] * 5, [0] * 5 + [1] * 4 + [0]]])
  with torch.no_grad():
    logits = model(ids, token_type_ids=types, attention_mask=(ids > 0).long()).logits[0]
  np.testing.assert_allclose(one["probabilities"], logits.softmax(-1), atol=1e-5)
  assert (one["number"], one["choice"]) == (int(logits.argmax()), item["choices"][int(logits.argmax())])


def test_answers_come_from_every_window(tmp_path, monkeypatch):
  monkeypatch.setattr(squad, "NUM_BEST", 100)  # every start and end of a window
  model, run = saved(tmp_path, "bert", "span_head")
  changed = run.config.to_dict()
  changed["fine_tuned"].update(window_stride=20)
  run = run._replace(config=type(run.config)(changed))
  (one,) = records(run, "question", tmp_path, [{"question": "a b", "context": CONTEXT}])
  starts, room = range(0, 61, 20), 59  # 64 positions, of which 5 are the question's and the separators'

  def seen(begin, token):  # how much of the context a window shows around a token; only the best one may begin there
    last = min(begin + room, 100) - 1
    return min(token - begin, last - token) + 0.01 * (last - begin + 1) if begin <= token <= last else -1

  best, nulls = (-np.inf, None), []
  for begin in starts:
    out = theirs(model, "a b", " ".join(CONTEXT.split()[begin:begin + room]))
    start, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
    nulls.append(start[0] + end[0])
    for i in range(begin, min(begin + room, 100)):
      if max(starts, key=lambda other: (seen(other, i), -other)) == begin:
        best = max(best, *((start[4 + i - begin] + end[4 + j - begin], (i, j))
                           for j in range(i, min(i + 30, begin + room, 100))))
  first, last = best[1]
  assert one["answer"] == CONTEXT[2 * first:2 * last + 1] and "context" not in one
  assert (one["candidates"][0]["start"], one["candidates"][0]["end"]) == (2 * first, 2 * last + 1)
  np.testing.assert_allclose((one["candidates"][0]["score"], one["null_odds"]), (best[0], min(nulls) - best[0]),
                             rtol=1e-4)
  assert one == records(run, "question", tmp_path, items_of(TASKS["question"], ["a b", CONTEXT]))[0]  # as typed


def test_mistakes(tmp_path):
  _, run = saved(tmp_path, "bert", "span_head")
  with pytest.raises(UserError, match="not fine-tuned for classification") as error:
    records(run, "classify", tmp_path, [{"text": "a"}])
  assert error.value.got.endswith(": span")
  for item, said in (({"question": "a " * 60, "context": "b"}, "question leaves no room"),
                     ({"question": "a", "context": " "}, "context is empty"),
                     ({"question": "", "context": "b"}, "question is empty")):
    with pytest.raises(UserError, match=said):
      TASKS["question"].encode(run, item)
  with pytest.raises(UserError, match="no masked LM"):
    pretraining_heads.fill_mask(run, ["a [MASK]"])
  for task, arguments in (("question", ["who?"]), ("choose", ["a", "b"])):
    with pytest.raises(UserError, match="arguments are not those"):
      items_of(TASKS[task], arguments)
  with pytest.raises(UserError, match="--pair belongs"):
    items_of(TASKS["classify"], ["a", "b"], "c")
  branches = run.config.to_dict()
  branches["fine_tuned"]["head"] = "multiple_choice"
  with pytest.raises(UserError, match="nothing to choose"):
    task_heads.encode_choices(run._replace(config=FrozenConfigDict(branches)), "a", "one text")


def test_questions_of_a_command_line():
  assert items_of(TASKS["choose"], ["a b", "one", "two"]) == [{"text": "a b", "choices": ["one", "two"]}]
  assert items_of(TASKS["classify"], ["a"], "b") == [{"text": "a", "pair": "b"}]


# ---- runs of our own ----


def fine_tuned_run(folder, task, head, label_names=(), **keys):
  """A workdir as fine-tuning leaves it, with random parameters."""
  given = bert_small.get_config("tiny")
  given.data.tokenizer.update(kind="wordpiece", vocab_size=len(WORDS))
  given.task.update(name=task, init_from="somewhere", train_path="a.jsonl", data_dir="d", max_length=64, **keys)
  given.data.sequence_length = 64
  config = config_lib.resolve(given)
  folder.mkdir()
  config_lib.save(str(folder / "config.json"), given, config)
  tokenizer = tokenizers.TOKENIZERS["wordpiece"].tokenizer({"vocab.txt": "\n".join(WORDS).encode()}, True)
  tokenizer.save(str(folder / "tokenizer"))
  num_labels = len(label_names) or {"span": 2, "joint_span": 2}.get(head, 1)
  (folder / "labels.json").write_text(json.dumps(
    {"task": task, "head": head, "num_labels": num_labels, "label_names": label_names}))
  transformer = make_transformer_config(config.model, num_tokens=len(WORDS), dtype="float32")
  transformer = dataclasses.replace(transformer, num_labels=num_labels, pooler=config.task.pooler)
  params = pretrained.init_params(jax.random.key(0), transformer, HEADS[head][0], None)
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda x: np.asarray(x + 0.3 * rng.standard_normal(x.shape), np.float32), params)
  writer = checkpoints.Checkpoints(str(folder), config.checkpoint)
  writer.save(TrainState(np.int32(1), params, {}), 1)
  writer.close()
  return params


@pytest.mark.parametrize("pooling, pooler", [("cls", "none"), ("cls", "tanh"), ("mean", "none")])
def test_classes_of_a_run(tmp_path, pooling, pooler):
  params = fine_tuned_run(tmp_path / "run", "own_classification", "classification", ("bad", "good"), pooling=pooling,
                          pooler=pooler)
  run = pretraining_heads.load(tmp_path / "run")
  assert run.config.objective.name == "own_classification"
  ((_, item, said),) = predict.answer(run, iter([(1, {"text": "a b"})]), TASKS["classify"])
  batch = pretraining_heads.make_batch(run, [pretraining_heads.encode(run, "a b")])
  states = np.asarray(jax.jit(run.network.encode)(run.params, batch, batch["input_ids"]))[0]
  x = states[0] if pooling == "cls" else states[:4].mean(axis=0)  # [CLS] a b [SEP]
  head = params["encoder"]["classification_head"]
  if pooler == "tanh":
    x = np.tanh(x @ head["dense"]["kernel"] + head["dense"]["bias"])
  logits = x @ head["output"]["kernel"] + head["output"]["bias"]
  np.testing.assert_allclose(said.value.values, np.exp(logits) / np.exp(logits).sum(), atol=1e-5)
  assert set(TASKS["classify"].record(item, said)["probabilities"]) == {"bad", "good"}
  if pooling == "mean":
    with pytest.raises(UserError, match="classification_head over task"):
      export.export(str(tmp_path / "run"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
  (tmp_path / "run/labels.json").write_text("{}")
  with pytest.raises(UserError, match="labels of the fine-tuned run"):
    pretraining_heads.load(tmp_path / "run")


def test_a_run_of_squad_2_knows_when_there_is_no_answer(tmp_path):
  """The head for it decides, at the threshold that the best run's dev set chose."""
  params = fine_tuned_run(tmp_path / "run", "squad_v2.0", "span")
  item = {"question": "a b", "context": "c d e f"}

  def answered(threshold):
    folder = tmp_path / "run/seeds/1"
    os.makedirs(folder, exist_ok=True)
    (folder / "threshold.json").write_text(json.dumps({"null_odds_threshold": threshold}))
    for seed, f1 in ((0, 0.3), (1, 0.7)):
      (tmp_path / f"run/seeds/{seed}.json").write_text(json.dumps(
        {"seed": seed, "metric": "best_f1", "scores": {"best_f1": f1}}))
    run = pretraining_heads.load(tmp_path / "run")
    return run, records(run, "question", tmp_path, [item])[0]

  run, high = answered(1e6)
  _, low = answered(-1e6)
  assert high["answer"] == high["candidates"][0]["text"] and low["answer"] == ""
  batch = {"input_ids": np.array([[2, *ids_of("a b"), 3, *ids_of("c d e f"), 3]], np.int32),
           "token_type_ids": np.array([[0] * 4 + [1] * 5], np.int32), "attention_mask": np.ones((1, 9), bool)}
  x = np.asarray(jax.jit(run.network.encode)(run.params, batch, batch["input_ids"]))[0, 0]
  head = params["encoder"]["answerable_head"]["output"]
  np.testing.assert_allclose(high["null_odds"], (x @ head["kernel"] + head["bias"])[0], atol=1e-4)


def test_a_run_with_a_joint_head_says_how_likely_no_answer_is(tmp_path):
  """Of SQuAD 1.1, where no head was trained for it: [CLS] as start and end, against the best span."""
  fine_tuned_run(tmp_path / "run", "squad_v1.1", "joint_span", span_head="joint")
  run, item = pretraining_heads.load(tmp_path / "run"), {"question": "a b", "context": "c d e f"}
  (one,) = records(run, "question", tmp_path, [item])
  ids, inside = [2, *ids_of("a b"), 3, *ids_of("c d e f"), 3], np.arange(9) // 4 == 1
  batch = {"input_ids": np.array([ids], np.int32), "token_type_ids": np.array([[0] * 4 + [1] * 5], np.int32),
           "attention_mask": np.ones((1, 9), bool), "may_start": inside[None], "may_end": inside[None]}
  null, *spans = np.asarray(jax.jit(run.network.task_outputs)(run.params, batch)["joint_span_head"])[0]
  spans = spans[:5]  # so many are written
  assert [(c["start"], c["end"]) for c in one["candidates"]] == [
    (2 * int(first) - 8, 2 * int(last) - 7) for _, _, first, last in spans]
  np.testing.assert_allclose([c["score"] for c in one["candidates"]], [span[:2].sum() for span in spans], atol=1e-4)
  assert one["null_odds"] == pytest.approx(float(null[:2].sum() - spans[0][:2].sum()), abs=1e-4)
  assert one["answer"] == one["candidates"][0]["text"]
