"""Labels read strictly: whatever could become a class, score or tag of its own by mistake is refused with its line."""

import json

import pytest

from configs.finetune import own as recipes
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.tasks import glue
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
  "one label": ("a.csv", csv(rows=[("a", "pos"), ("b", "pos")]), ["nothing to tell apart"]),
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
  with pytest.raises(UserError, match=r"no number.\n.*a\.jsonl:2"):
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

  head, line = OFFICIAL["mnli"][1].split("\n")
  write(tmp_path, "MNLI/train.tsv", "\n".join([head, line, line.rpartition("\t")[0] + "\t-"]) + "\n")
  left_out = {}
  assert len(glue.read("mnli", "train", str(tmp_path), left_out)) == 1
  assert list(left_out.values()) == ["gold_label is -"]


def test_the_official_files_are_read_whole(shared):
  root = str(shared / "data/glue")
  for name, row in glue.GLUE.items():
    task = tasks.make(config_of(name, data_dir=root))
    assert all(task.read(split) for split in row.splits) and task.left_out == {}
