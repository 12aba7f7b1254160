"""Labels read strictly: whatever could become a class, score or tag of its own by mistake is refused with its line."""

import json

import numpy as np
import pytest

from configs.finetune import own as recipes
from electra_jax import config as config_lib
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.finetuning import losses
from electra_jax.tasks import baselines, batches, custom, features, glue, labels
from tests.tasks.fake_tokenizer import Words
from tests.tasks.test_tasks import OFFICIAL, config_of, write

ROWS = [(f"sentence {number}", "pos" if number % 2 else "neg") for number in range(6)]  # lines 2 to 7 of a table


def csv(extra="", rows=ROWS):
  return "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows) + extra


def jsonl(*extra, rows=ROWS):
  return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in [*rows, *extra])


def made(root, name, content, kind="classification", **keys):
  c = recipes.get_config(kind)
  c.task.update(train_path=write(root, name, content), **keys)
  return tasks.make(c.task)


REFUSED = {  # file, content, what the error says
  "missing in CSV": ("a.csv", csv("no label,\n"), ["has no label", "a.csv:8: ''"]),
  "blank in CSV": ("a.csv", csv("no label,  \n"), ["has no label", "a.csv:8"]),
  "nan of pandas": ("a.csv", csv("no label,nan\n"), ["has no label", "a.csv:8: 'nan'"]),
  "null": ("a.jsonl", jsonl(("no label", None)), ["has no label", "a.jsonl:7: None"]),
  "NaN": ("a.jsonl", jsonl() + '{"text": "no label", "label": NaN}\n', ["has no label", "a.jsonl:7: nan"]),
  "no such field": ("a.jsonl", jsonl() + '{"text": "no label"}\n', ["'label' is missing", "a.jsonl:7"]),
  "list": ("a.jsonl", jsonl(("two", ["pos", "neg"])), ["label is no name", "a.jsonl:7: a list"]),
  "object": ("a.jsonl", jsonl(("two", {"pos": 1})), ["label is no name", "a.jsonl:7: a dict"]),
  "padded": ("a.csv", csv("x, pos\n"), ["begins or ends with", "a.csv:8: ' pos'"]),
  "no-break space": ("a.tsv", "text\tlabel\na\tpos\nb\tneg\nc\tneg\u00a0\n", ["begins or ends with", "a.tsv:4"]),
  "zero width": ("a.csv", csv("x,\u200bpos\n"), ["invisible character", "a.csv:8: '\\u200bpos'"]),
  "quoted behind a blank": ("a.csv", csv('x, "pos"\n'), ["begins or ends with", "a.csv:8"]),
  "integers and decimals": ("a.csv", csv(rows=[("a", "1"), ("b", "0"), ("c", "1.0")]), [
    "differ only in their spelling", "'1' in", "'1.0' in", "a.csv:4"]),
  "quotes in TSV": ("a.tsv", 'text\tlabel\na\tpos\nb\tneg\nc\t"pos"\n', ["only in their spelling", "a.tsv:4"]),
  "a header again": ("a.csv", csv() + csv(), ["header occurs again", "a.csv:8"]),
  "two forms of an accent": ("a.csv", csv("x,caf\u00e9\ny,cafe\u0301\n"), ["only in their spelling", "a.csv:9"]),
  "numbers and strings": ("a.jsonl", jsonl(("x", 1)), ["several types", "str in", "a.jsonl:1, int in", "a.jsonl:7"]),
  "numbers and booleans": ("a.jsonl", jsonl(("x", True), rows=[("a", 1), ("b", 0)]), ["several types", "bool in"]),
  "integers and floats": ("a.jsonl", jsonl(("x", 2.0), rows=[("a", 1), ("b", 0)]), ["several types", "float in"]),
  "comma in a text": ("a.csv", csv("I liked it, really,pos\n"), ["too many columns", "a.csv:8"]),
  "open quote": ("a.csv", csv('"never closed,pos\nx,neg\n'), ["quote is not closed", "a.csv:8"]),
  "no text": ("a.csv", csv(",pos\n"), ["has no text", "a.csv:8"]),
  "text is NaN": ("a.jsonl", jsonl() + '{"text": NaN, "label": "pos"}\n', ["is no text", "a.jsonl:7"]),
  "one label": ("a.csv", csv(rows=[("a", "pos"), ("b", "pos")]), ["nothing to tell apart", "a.csv:2: pos alone"]),
}


@pytest.mark.parametrize("row", REFUSED)
def test_labels_that_are_none_are_refused(row, tmp_path):
  name, content, words = REFUSED[row]
  with pytest.raises(UserError) as caught:
    made(tmp_path, name, content).read("train")
    made(tmp_path, name, content).read("dev")
  assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("row", [row for row in REFUSED if row != "one label"])
def test_and_so_they_are_in_the_dev_file(row, tmp_path):
  name, content, _ = REFUSED[row]
  train = write(tmp_path, "train.csv", csv(rows=[*ROWS, ("a", "0"), ("b", "1"), ("c", "caf\u00e9")]))
  c = recipes.get_config("classification")
  c.task.update(train_path=train, dev_path=write(tmp_path, name, content))
  task = tasks.make(c.task)
  if row == "numbers and strings":  # which of the two was trained on, is known here
    assert task.read("dev")[-1].label == "1"
    return
  with pytest.raises(UserError, match=name):
    task.read("dev")


@pytest.mark.parametrize("content, name, names", [
  (csv(), "a.csv", ("neg", "pos")),
  (jsonl(rows=[("a", True), ("b", False)]), "a.jsonl", ("false", "true")),
  (jsonl(rows=[("a", 1), ("b", 0)]), "a.jsonl", ("0", "1")),
  (jsonl(rows=[("a", 1.0), ("b", 0.0)]), "a.jsonl", ("0.0", "1.0")),  # as pandas writes them
  (csv(rows=[("a", "very good"), ("b", "None")]), "a.csv", ("None", "very good")),
  (csv(rows=[("a", "👩\u200d🚀"), ("b", "☀\ufe0f")]), "a.csv", ("☀\ufe0f", "👩\u200d🚀")),
  ("text\tlabel\n\"a\tpos\nb\tneg\n", "a.tsv", ("neg", "pos")),
  (csv(rows=[("a", "pos"), ("b", "Pos")]), "a.csv", ("Pos", "pos")),
])
def test_labels_that_are_some(content, name, names, tmp_path):
  assert made(tmp_path, name, content).label_names == names


SCORES = {  # what a file says -> the number; None: refused
  "3.5": 3.5, " 3.5": 3.5, "-1e-3": -1e-3, ".5": 0.5, "7": 7.0, "3,5": None, '"3,5"': None, "1_000": None,
  "1 000": None, "nan": None, "inf": None, "1e999": None, "": None, "٣": None, "high": None, "50%": None, "0x10": None,
}


@pytest.mark.parametrize("written", SCORES)
def test_scores_of_a_table(written, tmp_path):
  def label():
    content = f"text,score\na,1\nb,{written}\n"
    return made(tmp_path, "a.csv", content, "regression", label_field="score", dev_path="-").read("train")[1].label

  if SCORES[written] is not None:
    assert label() == SCORES[written]
    return
  with pytest.raises(UserError, match=r"a\.csv:3"):
    label()


@pytest.mark.parametrize("value, number", [("2", 2.0), ("2.5", 2.5), ("null", None), ("NaN", None), ("true", None),
                                           ("[1]", None), ("1" + "0" * 400, None), ('"3,5"', None)])
def test_scores_of_json(value, number, tmp_path):
  task = made(tmp_path, "a.jsonl", f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {value}}}\n', "regression",
              dev_path=str(tmp_path / "a.jsonl"))
  if number is not None:
    assert task.read("train")[1].label == number
    return
  with pytest.raises(UserError, match=r"not a number.\n.*a\.jsonl:2"):
    task.read("train")


TAGS = {  # tags of two sentences -> what the error says; None: fine
  "BIO": ("B-A I-A O", "O O", None), "IOB1": ("I-A B-A O", "O O", None), "BIOES": ("B-A E-A S-A", "O O", None),
  "BILOU": ("B-A L-A U-A", "O O", None), "BMES": ("B-A M-A E-A", "O O", None), "segmentation": ("B M E", "S S", None),
  "underscores": ("B_A I_A O", "O O", None), "no entities": ("NOUN VERB X", "ADJ NOUN", None),
  "types with a dash": ("T-cell O O", "NK-cell O", None),
  "M- among BIO": ("B-A M-A O", "B-A I-A", ["'M-A'", "BMES"]), "L- among BIOES": ("B-A E-A L-A", "O O", ["'L-A'"]),
  "a tag of its own": ("B-A X-A O", "O O", ["'X-A'", "a.jsonl:1"]), "padded": ("B-A| I-A|O", "O|O", ["begins or ends"]),
}


@pytest.mark.parametrize("row", TAGS)
def test_tags_are_of_one_scheme(row, tmp_path):
  *sentences, words = TAGS[row]
  lines = []
  for sentence in sentences:
    tags = sentence.split("|" if "|" in sentence else " ")
    lines.append(json.dumps({"text": ["word"] * len(tags), "label": tags}) + "\n")
  if words is None:
    assert made(tmp_path, "a.jsonl", "".join(lines), "tagging").label_names
    return
  with pytest.raises(UserError) as caught:
    made(tmp_path, "a.jsonl", "".join(lines), "tagging")
  assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_message_about_ten_thousand_classes_is_short(tmp_path):
  task = made(tmp_path, "a.csv", csv(rows=[(f"text {i}", f"class_{i:05}") for i in range(10_000)]),
              dev_path=write(tmp_path, "dev.csv", csv(rows=[("x", "other")])))
  with pytest.raises(UserError, match="label is unknown") as caught:
    task.read("dev")
  assert len(str(caught.value)) < 600 and "9,988 more" in str(caught.value)


def test_lines_that_the_field_leaves_out_are_counted(tmp_path):
  head, line = OFFICIAL["qqp"][1].split("\n")
  write(tmp_path, "QQP/train.tsv", "\n".join([head, line, "\tWho? What?\t0", line]) + "\n")
  write(tmp_path, "QQP/test.tsv", "id\tquestion1\tquestion2\n0\ta\n")
  task = tasks.make(config_of("qqp", data_dir=str(tmp_path)))
  assert task.left_out == {} and len(task.read("train")) == len(task.read("train")) == 2
  assert list(task.left_out.values()) == ["3 of 6 columns"] and next(iter(task.left_out)).endswith("train.tsv:3")
  with pytest.raises(UserError, match="too few columns"):  # the server counts them
    task.read("test")


def test_the_official_files_are_read_whole(shared):
  root = str(shared / "data/glue")
  for name, row in glue.GLUE.items():
    task = tasks.make(config_of(name, data_dir=root))
    assert all(task.read(split) for split in row.splits) and task.left_out == {}


# ---- what is said of labels, and what there is to beat ----


def sentiment(count=60, rare=3):
  """Every `rare`-th text is bad, by its first word."""
  return [(f"awful film number {number}", "neg") if number % rare == 0 else (f"lovely film number {number}", "pos")
          for number in range(count)]


def test_the_dev_part_has_each_labels_share_and_no_label_that_occurs_once(tmp_path):
  task = made(tmp_path, "a.csv", csv(rows=[*sentiment(90), ("odd", "once")]))
  dev, train = ([example.label for example in task.read(split)] for split in ("dev", "train"))
  assert sorted(dev) == ["neg"] * 3 + ["pos"] * 6 and len(train) == 82 and "once" in train
  assert labels.introduce(task, {split: task.read(split) for split in task.splits}) == [
    "labels of train: neg 27, once 1, pos 54", "labels of dev: neg 3, once 0, pos 6",
    "Only 9 dev examples: one of them is 11.1 points, so the scores say little. Label more, or name more with "
    "task.dev_path.", "Labels that occur once in train, too rarely to be learnt: once.",
    "Labels that no dev example has, so that no score covers them: once."]


def test_no_label_goes_to_the_dev_part_whole():
  assert custom.dev_part([*"aa", *map(str, range(98))]) in ({0}, {1})  # a tenth would be ten, and more than there are


FEW = {  # kind, rows, keys -> what the error says
  "one example": ("regression", [("a", 1)], {}, "cannot be split"),
  "no label anywhere": ("multi_label", [("a", []), ("b", [])], {}, "a.jsonl:1: none alone"),
  "three texts": ("regression", [("a", 1)] * 3, {"text_fields": "text,text,text"}, "at most 2 for"),
  "no test file": ("regression", [("a", 1)] * 3, {"write_test_predictions": True}, "no test examples"),
  "two lists of words": ("tagging", [("a b", "X Y")] * 3, {"text_fields": "text,text"}, "at most 1 for"),
}


@pytest.mark.parametrize("row", FEW)
def test_data_that_is_too_little_or_too_much(row, tmp_path):
  kind, rows, keys, words = FEW[row]
  with pytest.raises(UserError, match=words):
    made(tmp_path, "a.jsonl", jsonl(rows=rows), kind, **keys).read("train")


def test_baselines_know_the_larger_class_and_the_words(tmp_path):
  path = write(tmp_path, "dev.csv", csv(rows=sentiment()))
  task = made(tmp_path, "a.csv", csv(rows=sentiment()), dev_path=path)
  found = baselines.measure(task, task.read("train"), task.read("dev"))
  assert found == {baselines.CONSTANT: pytest.approx(2 / 3), baselines.WORDS: 1.0}
  assert "Nothing to use yet: the median accuracy 66.7 is not above that of always" in baselines.describe(
    "accuracy", 2 / 3, found)
  assert "Nothing" not in baselines.describe("accuracy", 0.7, {baselines.CONSTANT: 0.66})
  assert baselines.measure(task._replace(head="regression"), [], []) == {}


def test_baselines_of_labels_that_all_or_none_have(tmp_path):
  rows = "".join(json.dumps({"text": text, "label": ["all", label] if label == "neg" else ["all"]}) + "\n"
                 for text, label in sentiment())
  task = made(tmp_path, "a.jsonl", rows, "multi_label", dev_path=str(tmp_path / "a.jsonl"))
  found = baselines.measure(task, task.read("train"), task.read("dev"))
  assert found[baselines.WORDS] == 1.0 > found[baselines.CONSTANT]
  alike = [example._replace(label=("all",)) for example in task.read("train")]
  assert set(baselines.by_words(task, alike, [("a film",)])) == {("all",)}


def test_precision_recall_and_confusions(tmp_path):
  task = made(tmp_path, "a.csv", csv())
  examples = task.read("train")[:4]  # of neg, pos, neg, pos, neg, pos one is kept for dev
  wanted = [example.label for example in examples]
  shown = labels.class_tables(task, ["pos"] * 4, examples)
  positive = wanted.count("pos")
  assert f"| neg | - | 0.0 | 0.0 | {4 - positive} |" in shown
  assert f"| pos | {25 * positive:.1f} | 100.0 | {200 * positive / (4 + positive):.1f} | {positive} |" in shown
  assert f"| neg | 0 | {4 - positive} |" in shown and f"| pos | 0 | {positive} |" in shown
  assert task.files({"dev": (["pos"] * 4, examples)})["dev.csv"].splitlines()[:2] == [
    "id,label,prediction,text", f"{examples[0].example_id},{wanted[0]},pos,{examples[0].texts[0]}"]


def test_balanced_classes_weigh_alike(tmp_path):
  path = write(tmp_path, "dev.csv", csv())
  task = made(tmp_path, "a.csv", csv(rows=sentiment()), class_weights="balanced", dev_path=path)
  rows = features.of_examples(task, task.read("train"), Words(), 16)
  batch = batches.collate(rows, 64, 16, 0, "classification")
  weights = {label: batch["row_weight"][:60][batch["label"][:60] == label] for label in (0, 1)}
  assert weights[0].sum() == pytest.approx(30) and weights[1].sum() == pytest.approx(30)
  assert not batch["row_weight"][60:].any()
  c = recipes.get_config("regression")
  c.task.update(class_weights="balanced", train_path=path, init_from="somewhere")
  with pytest.raises(UserError, match=r"class_weights is 'balanced', which is for task\.name=own_classification"):
    config_lib.resolve(c)


@pytest.mark.parametrize("content, name", [
  (jsonl(rows=[("a", ["x", "y"]), ("b", []), ("c", ["y"])]), "a.jsonl"),
  ("text,label\na,x; y\nb,\nc,y\n", "a.csv"), ("text\tlabel\na\ty;x\nb\t\nc\ty\n", "a.tsv")])
def test_several_labels_of_a_text(content, name, tmp_path):
  task = made(tmp_path, name, content, "multi_label", dev_path=str(tmp_path / name))
  examples = task.read("train")
  assert task.label_names == ("x", "y") and [example.label for example in examples] == [("x", "y"), (), ("y",)]
  (feature,) = task.featurize(examples[2], Words(), 16)
  assert feature["labels"] == [0.0, 1.0]
  batch = batches.collate([feature], 2, 16, 0, "multi_label")
  assert batch["labels"].tolist() == [[0, 1], [0, 0]]
  outputs = {"classification_head": np.array([[1.0, 2.0], [-1.0, 0.0], [np.nan, 1.0]])}
  assert task.decode(outputs, [], examples) == [("x", "y"), (), None]
  assert task.score([("x", "y"), (), ("x",)], examples) == {
    "micro_f1": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3), "accuracy": pytest.approx(2 / 3)}
  assert list(losses.multi_label({"classification_head": np.zeros((2, 2))}, batch)) == pytest.approx([np.log(2)] * 2)


def test_f1_is_of_1_or_the_mean_over_the_labels(tmp_path):
  few = made(tmp_path, "a.csv", csv(rows=[(text, "10"[label == "neg"]) for text, label in sentiment()]), metric="f1")
  assert few.metric == "f1"
  examples = few.read("train")
  positive = sum(example.label == "1" for example in examples)
  assert few.score(["1"] * len(examples), examples)["f1"] == pytest.approx(2 * positive / (len(examples) + positive))
  many = made(tmp_path, "b.csv", csv(rows=sentiment()))
  examples = many.read("train")
  positive = sum(example.label == "pos" for example in examples)
  assert many.score(["pos"] * len(examples), examples)["f1"] == pytest.approx(positive / (len(examples) + positive))
