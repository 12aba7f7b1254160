"""How is every task read and shown to the encoder? Official files written out, and what is wrong with broken ones."""

import gzip
import json

import numpy as np
import pytest

from configs.finetune import glue as recipes
from configs.finetune import own as own_recipe
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.finetuning import losses
from electra_jax.tasks import batches, features, glue, labels, ranking, sequences
from electra_jax.tasks.base import Example
from tests.tasks.fake_tokenizer import Words

# task -> (file of the training split, header and one line, the texts, the label)
OFFICIAL = {
  "cola": ("CoLA/train.tsv", "gj04\t1\t\tA bc .", ("A bc .",), "1"),
  "sst2": ("SST-2/train.tsv", "sentence\tlabel\ngood film \t0", ("good film ",), "0"),
  "mrpc": ("MRPC/train.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t\" a b\tc", ('" a b', "c"), "1"),
  "stsb": ("STS-B/train.tsv", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
           "0\tg\tf\ty\to\ts\ts\ta\tb c\t3.800", ("a", "b c"), 3.8),
  "qqp": ("QQP/train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\ta ?\tb ?\t0", ("a ?", "b ?"),
          "0"),
  "mnli": ("MNLI/train.tsv", "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
           "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
           "0\tp\tp\tg\tx\tx\tx\tx\ta b\tc\tneutral\tneutral", ("a b", "c"), "neutral"),
  "qnli": ("QNLI/train.tsv", "index\tquestion\tsentence\tlabel\n0\tq ?\ts .\tnot_entailment", ("q ?", "s ."),
           "not_entailment"),
  "rte": ("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta b c\td\tentailment", ("a b c", "d"), "entailment"),
  "wnli": ("WNLI/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1", ("a", "b"), "1"),
}


def write(root, name, text):
  path = root / name
  path.parent.mkdir(parents=True, exist_ok=True)
  with (gzip.open(path, "wt") if name.endswith(".gz") else open(path, "w")) as file:
    file.write(text)
  return str(path)


def config_of(task, **keys):
  c = recipes.get_config(task) if task in recipes.TASKS else own_recipe.get_config(task)
  c.task.update(keys)
  return c.task


@pytest.mark.parametrize("name", glue.GLUE)
def test_every_glue_task_is_read_and_shown_as_written(name, tmp_path):
  file, text, texts, label = OFFICIAL[name]
  write(tmp_path, file + ".gz", text + "\n")
  task = tasks.make(config_of(name, data_dir=str(tmp_path)))
  (example,) = task.read("train")
  assert (example.texts, example.label) == (texts, label)
  assert example.where.endswith(f".tsv.gz:{1 if name == 'cola' else 2}")
  (feature,) = task.featurize(example, Words(), 128)
  words = [[10 + len(word) for word in text.split()] for text in texts]
  pair = [1, *words[0], 2] + ([*words[1], 2] if len(words) == 2 else [])
  assert feature["input_ids"] == pair
  assert feature["token_type_ids"] == [0] * (len(words[0]) + 2) + [1] * (len(pair) - len(words[0]) - 2)
  assert feature["label"] == (label if name == "stsb" else task.label_names.index(label))


def test_a_byte_level_vocabulary_has_two_separators_and_the_longer_text_is_cut():
  feature = features.sequence(Words("byte_bpe"), ("a b c d", "e"), 8)
  assert feature["input_ids"] == [1, 11, 11, 11, 2, 2, 11, 2] and feature["_was_cut"]
  assert feature["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1]
  assert features.sequence(Words(), ("a b", "c d e"), 7)["input_ids"] == [1, 11, 11, 2, 11, 11, 2]
  assert features.sequence(Words(), ("a b", "c d"), 6)["input_ids"] == [1, 11, 11, 2, 11, 2]  # of equals the second


def test_tags_stand_at_the_first_piece_of_each_word(tmp_path):
  path = write(tmp_path, "ner.jsonl", '{"tokens": ["New-York", "is", "big"], "tags": ["B-LOC", "O", "O"]}\n')
  task = tasks.make(config_of("tagging", train_path=path, dev_path=path, text_fields="tokens", label_field="tags"))
  (example,) = task.read("dev")
  (feature,) = task.featurize(example, Words(), 128)
  assert task.label_names == ("B-LOC", "O")
  assert feature["tags"] == [-1, 0, -1, 1, 1, -1] and feature["_first"] == [1, 3, 4]
  (cut,) = task.featurize(example, Words(), 4)
  batch = batches.collate([feature, cut], 3, 8, 0, "tagging")
  assert batch["tags"][0].tolist() == [-1, 0, -1, 1, 1, -1, -1, -1] and batch["row_weight"].tolist() == [1, 1, 0]
  logits = np.zeros((2, 8, 2), np.float32)
  logits[:, 1, 0] = 1
  assert sequences.decode_tags({"tagging_head": logits}, [feature, cut], [example, example], task.label_names) == [
    ("B-LOC", "B-LOC", "B-LOC"), ("B-LOC", "O", "O")]  # words that were cut off are no entities
  assert task.files({"test": ([("B-LOC", "O", "O")], [example._replace(label=None)])}) == {
    "test.csv": "id,label,prediction,text\n0,,B-LOC O O,New-York is big\n"}


def test_choices_of_a_question_are_one_row():
  feature = {"input_ids": [[1, 5, 2], [1, 5, 6, 2]], "token_type_ids": [[0] * 3, [0] * 4], "label": 1}
  batch = batches.collate([feature], 2, 4, 0, "multiple_choice")
  assert batch["input_ids"].shape == (2, 2, 4) and batch["label"].tolist() == [1, 0]
  assert batch["attention_mask"][0].sum(-1).tolist() == [3, 4]


def test_pairs_are_swapped_only_in_training_and_only_if_asked(tmp_path):
  write(tmp_path, OFFICIAL["mrpc"][0], OFFICIAL["mrpc"][1])
  task = tasks.make(config_of("mrpc", data_dir=str(tmp_path), swap_pairs=True))
  assert [e.texts for e in task.augment(task.read("train"))] == [('" a b', "c"), ("c", '" a b')]
  plain = tasks.make(config_of("mrpc", data_dir=str(tmp_path)))
  assert len(plain.augment(plain.read("train"))) == 1


def test_own_csv_and_jsonl(tmp_path):
  csv = write(tmp_path, "a.csv", 'title,body,stars\n"a, b",c,4.5\nd,"e\nf",1\n')
  task = tasks.make(config_of("regression", train_path=csv, dev_path=csv, text_fields="title,body",
                              label_field="stars"))
  assert [(e.texts, e.label) for e in task.read("train")] == [(("a, b", "c"), 4.5), (("d", "e\nf"), 1.0)]
  rows = "".join(json.dumps({"text": f"t{i}", "label": i % 2}) + "\n" for i in range(30))
  task = tasks.make(config_of("classification", train_path=write(tmp_path, "b.jsonl", rows)))
  assert task.label_names == ("0", "1")
  kept, held = ({e.texts for e in task.read(split)} for split in ("train", "dev"))
  assert len(kept) == 27 and len(held) == 3 and not kept & held


def test_submission_files_have_names_headers_and_label_names(tmp_path):
  write(tmp_path, "RTE/test.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n")
  write(tmp_path, "MNLI/test_matched.tsv", "index\tsentence1\tsentence2\n7\ta\tb\n")
  rte = tasks.make(config_of("rte", data_dir=str(tmp_path)))
  examples = rte.read("test")
  assert [e.label for e in examples] == [None, None]
  assert rte.submission("test", ["entailment", "not_entailment"], examples) == {
    "RTE.tsv": "index\tprediction\n0\tentailment\n1\tnot_entailment\n"}
  mnli = tasks.make(config_of("mnli", data_dir=str(tmp_path)))
  assert mnli.submission("test_matched", ["neutral"], mnli.read("test_matched")) == {
    "MNLI-m.tsv": "index\tprediction\n7\tneutral\n"}
  shuffled = [examples[0]._replace(example_id=number) for number in ("10", "9")]
  assert glue.submission("stsb", "test", [5.3, -1.0], shuffled) == {
    "STS-B.tsv": "index\tprediction\n9\t0.000\n10\t5.000\n"}
  assert [count for _, count in glue.GLUE["mnli"].tests.values()] == [9796, 9847, 1104]


@pytest.mark.parametrize("file", glue.AX_FILES)
def test_diagnostics_are_a_test_split_of_mnli(file, tmp_path):
  write(tmp_path, file, "index\tsentence1\tsentence2\n0\ta b\tc\n")
  mnli = tasks.make(config_of("mnli", data_dir=str(tmp_path)))
  (example,) = mnli.read("ax")
  assert example.texts == ("a b", "c") and example.label is None and mnli.test_splits[-1] == "ax"
  assert mnli.submission("ax", ["entailment"], [example]) == {"AX.tsv": "index\tprediction\n0\tentailment\n"}


def test_qnli_as_ranking_compares_sentences_of_a_question(tmp_path):
  header = "index\tquestion\tsentence\tlabel\n"
  write(tmp_path, "QNLI/train.tsv", header + "0\tq one\ta\tentailment\n1\tq one\tb c\tnot_entailment\n"
        "2\tq two\td e f\tentailment\n")
  write(tmp_path, "QNLI/dev.tsv", header + "0\tq\ta\tentailment\n1\tq\tb\tnot_entailment\n2\tr\tc\tnot_entailment\n"
        "3\ts\td\tentailment\n")
  task = tasks.make(config_of("qnli_ranking", data_dir=str(tmp_path)))
  train = task.read("train")
  assert [e.texts for e in train] == [("q one", "a", "b c"), ("q two", "d e f", "a")]
  (feature,) = task.featurize(train[0], Words(), 16)
  assert feature["input_ids"] == [[1, 11, 13, 2, 11, 2], [1, 11, 13, 2, 11, 11, 2]]
  dev = task.read("dev")
  assert labels.introduce(task, {"train": train, "dev": dev}) == []  # "entailment" is no ten labels of a letter each
  outputs = {"multiple_choice_head": np.array([[-3.0], [-4.0], [-9.0], [0.1]], np.float32)}
  assert task.score(task.decode(outputs, [], dev), dev) == {"accuracy": 1.0}
  assert task.decode({"multiple_choice_head": np.full((4, 1), np.nan)}, [], dev) == [None] * 4


def test_candidates_of_qnli_come_from_the_most_similar_question():
  questions = ["who built the old mill", "when was the mill built", "what do whales eat", "where do whales live"]
  assert ranking.mine(questions, list("abcd")) == ["b", "a", "d", "c"]
  assert ranking.mine(["one", "two"], ["same", "same"]) == ["", ""]
  many = [f"name{i // 2} question number{i}" for i in range(1200)]  # "question" is in all of them, and is left out
  assert ranking.mine(many, [str(i) for i in range(1200)]) == [str(i ^ 1) for i in range(1200)]


# rows of a question -> questions of the official dev file: 5 463 rows, half of them alone
OFFICIAL_QNLI_DEV = {("entailment",): 1340, ("not_entailment",): 1398, ("entailment", "not_entailment"): 1361,
                     ("not_entailment", "entailment", "not_entailment"): 1}


def test_a_perfect_scorer_is_right_on_the_counts_of_the_official_dev_set_of_qnli():
  dev = [Example(f"{q}", (f"question {labels} {number}", f"sentence {n}"), label, "")
         for q, (labels, count) in enumerate(OFFICIAL_QNLI_DEV.items()) for number in range(count)
         for n, label in enumerate(labels)]
  assert len(dev) == 5463
  scores = np.array([[1.0 if e.label == ranking.ANSWER else -1.0] for e in dev])
  assert ranking.decode({"multiple_choice_head": scores}, dev) == [e.label for e in dev]


def test_the_loss_of_answers_has_a_zero():
  scores = np.array([[9.0, -9.0], [9.0, 5.0], [0.0, 0.0]], np.float32)
  found = losses.answer_ranking({"multiple_choice_head": scores}, {})
  np.testing.assert_allclose(found, [0, 2.5, 2 * np.log(2)], atol=0.03)


BAD = {  # (task, files, config keys, what the error names)
  "missing column": ("rte", {"RTE/train.tsv": "index\tsentence1\tlabel\n0\ta\tentailment\n"}, {},
                     ["'sentence2' is missing", "train.tsv:2"]),
  "short line": ("rte", {"RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\n"}, {},
                 ["too few columns", "train.tsv:3", "sentence2, label"]),
  "unknown label": ("rte", {"RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentails\n"}, {},
                    ["label is unknown", "train.tsv:2: 'entails'", "entailment, not_entailment"]),
  "no score": ("stsb", {"STS-B/train.tsv": "index\tsentence1\tsentence2\tscore\n0\ta\tb\thigh\n"}, {},
               ["score is not a number", "train.tsv:2"]),
  "empty file": ("rte", {"RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n"}, {}, ["no example", "train.tsv:1"]),
  "no file": ("rte", {}, {}, ["does not exist", "RTE/train.tsv"]),
  "test set without labels": ("rte", {"RTE/train.tsv": "index\tsentence1\tsentence2\n0\ta\tb\n"}, {},
                              ["'label' is missing", "train.tsv:2"]),
  "no JSON": ("own", {"a.jsonl": '{"text": "a", "label": "x"}\n{"text": '}, {}, ["no JSON object", "a.jsonl:2"]),
  "null label": ("own", {"a.jsonl": '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n'}, {},
                 ["has no label", "a.jsonl:2"]),
  "one label": ("own", {"a.jsonl": '{"text": "a", "label": "x"}\n'}, {}, ["nothing to tell apart", "a.jsonl:1"]),
  "text is a number": ("own", {"a.jsonl": '{"text": 3, "label": "x"}\n{"text": "b", "label": "y"}\n'},
                       {"dev_path": "a.jsonl"}, ["is no text", "a.jsonl:1: 3"]),
  "a tag too few": ("tagging", {"a.jsonl": '{"tokens": ["a", "b"], "tags": ["O", "B-A"]}\n{"tokens": ["a"], "tags": '
                                           '["O", "O"]}\n'},
                    {"train_path": "a.jsonl", "dev_path": "a.jsonl", "text_fields": "tokens", "label_field": "tags"},
                    ["not one tag for each word", "a.jsonl:2: 1 words, 2 tags"]),
  "unknown kind of file": ("own", {"a.xml": "<a>"}, {"train_path": "a.xml"}, ["kind of a data file", "a.xml"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_names_file_and_line(what, tmp_path):
  task_name, files, keys, named = BAD[what]
  for name, text in files.items():
    write(tmp_path, name, text)
  paths = {"train_path": "a.jsonl"} if task_name == "own" else {"data_dir": ""}
  keys = {**paths, **keys}
  keys = {key: str(tmp_path / value) if key.endswith(("_path", "_dir")) else value for key, value in keys.items()}
  config = config_of("classification" if task_name == "own" else task_name, **keys)
  with pytest.raises(UserError) as caught:
    task = tasks.make(config)
    for example in task.read("train"):
      task.featurize(example, Words(), config.max_length)
  assert caught.value.got and caught.value.allowed and caught.value.fix
  for part in named:
    assert part in str(caught.value)


def test_real_glue_counts(shared):
  for name, counts in {"cola": (8551, 1043), "mrpc": (3668, 408), "stsb": (5749, 1500), "rte": (2490, 277)}.items():
    assert tuple(len(glue.read(name, split, str(shared / "data/glue"))) for split in ("train", "dev")) == counts
