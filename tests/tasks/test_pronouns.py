"""Is WNLI ranked as written: which phrase stands for the pronoun, what competes with it, who wins?"""

import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from configs.finetune import glue as recipe
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.finetuning import losses
from electra_jax.tasks import pronouns
from electra_jax.tasks.pronouns import make_finder
from tests.tasks.fake_tokenizer import Words, find_phrases

HEADER = "index\tsentence1\tsentence2\tlabel\n"
TROPHY = "The trophy doesn't fit in the case because it is too big."
REFERENTS = [  # sentence, hypothesis -> what stands before, for and after the pronoun
  (TROPHY, "The trophy is too big.", ("", "The trophy", " is too big.")),
  ("When Tommy left, Timmy giggled, so father gave him a stern look.", "Father gave Timmy a stern look.",
   ("Father gave ", "Timmy", " a stern look.")),
  ("Susan knew that Ann was ill, so she told her about it.", "Ann told her about it.",
   ("", "Ann", " told her about it.")),
  ("Mark told Pete many lies about his past.", "Mark told Pete many lies about Pete's past.",
   ("Mark told Pete many lies about ", "Pete", "'s past.")),
  ("I can't see around it, the pillar is there.", "I can't see around the pillar.",
   ("I can't see around ", "the pillar", ".")),
  ("It rained.", "Something else entirely.", None),
  ("No such word here.", "The cat sat.", None),
]


@pytest.fixture(autouse=True)
def finder(monkeypatch):
  monkeypatch.setattr(pronouns, "make_finder", lambda: find_phrases)


@pytest.mark.parametrize("premise,hypothesis,found", REFERENTS)
def test_what_stands_for_the_pronoun(premise, hypothesis, found):
  assert pronouns.find_referent(premise, hypothesis) == found


def task_of(root, **texts):
  for split, rows in texts.items():
    (root / "WNLI").mkdir(exist_ok=True)
    (root / "WNLI" / f"{split}.tsv").write_text(HEADER + "".join(f"{i}\t{row}\n" for i, row in enumerate(rows)))
  c = recipe.get_config("wnli_ranking")
  c.task.update(data_dir=str(root))
  return tasks.make(c.task)


def test_features_written_out(tmp_path):
  task = task_of(tmp_path, train=[f"{TROPHY}\tThe trophy is too big.\t1", f"{TROPHY}\tThe case is too big.\t0",
                                  "It rained.\tSomething else.\t1"], dev=[f"{TROPHY}\tThe case is too big.\t0"])
  (pair,) = task.read("train")  # the positive one whose pronoun is found
  assert pair.texts == (TROPHY, "The trophy is too big.", "the case is too big.")
  (feature,) = task.featurize(pair, Words(), 64)
  premise = [10 + len(word) for word in TROPHY.split()]
  assert feature["input_ids"] == [[1, *premise, 2, 13, 16, 12, 13, 14, 2], [1, *premise, 2, 13, 14, 12, 13, 14, 2]]
  assert "label" not in feature
  (example,) = task.read("dev")
  features = task.featurize(example, Words(), 64)
  assert [f["input_ids"][0][-7:-1] for f in features] == [[2, 13, 14, 12, 13, 14], [2, 13, 16, 12, 13, 14]]


def test_the_best_phrase_is_true_and_without_others_nothing_is(tmp_path):
  task = task_of(tmp_path, dev=[f"{TROPHY}\tThe trophy is too big.\t1", f"{TROPHY}\tThe case is too big.\t0",
                                "It rained.\tSomething else.\t0"])
  examples = task.read("dev")
  features = [f | {"_example": i} for i, e in enumerate(examples) for f in task.featurize(e, Words(), 64)]
  assert [f["_example"] for f in features] == [0, 0, 1, 1, 2]
  outputs = {"multiple_choice_head": np.array([[0.9], [0.2], [0.2], [0.9], [5.0]])}
  found = task.decode(outputs, features, examples)
  assert found == ["1", "0", "0"] and task.score(found, examples) == {"accuracy": 1.0}
  assert task.submission("test", found, examples) == {"WNLI.tsv": "index\tprediction\n0\t1\n1\t0\n2\t0\n"}
  outputs["multiple_choice_head"][3] = np.nan
  assert task.decode(outputs, features, examples) == ["1", None, "0"]
  assert np.isnan(task.score(task.decode(outputs, features, examples), examples)["accuracy"])


def test_the_loss_is_a_margin_between_the_two():
  scores = jnp.array([[2.0, 0.5], [0.5, 0.2], [0.0, 3.0]])
  np.testing.assert_allclose(losses.ranking({"multiple_choice_head": scores}, {}), [0, 0.7, 4], atol=1e-6)


def test_spacy_finds_the_chunks_and_its_absence_is_told(monkeypatch):
  monkeypatch.setitem(sys.modules, "spacy", None)
  with pytest.raises(UserError) as caught:
    make_finder()
  assert "pip install spacy && python -m spacy download en_core_web_sm" in caught.value.fix
  chunk = types.SimpleNamespace(text="the cat")
  fake = types.SimpleNamespace(load=lambda name, exclude: lambda text: types.SimpleNamespace(noun_chunks=[chunk]))
  monkeypatch.setitem(sys.modules, "spacy", fake)
  assert make_finder()("the cat sat") == ["the cat"]


def test_most_of_wnli_is_understood(shared):
  c = recipe.get_config("wnli_ranking")
  c.task.update(data_dir=str(shared / "data/glue"))
  examples = pronouns.glue.read("wnli", "train", c.task.data_dir)
  assert sum(pronouns.find_referent(*example.texts) is not None for example in examples) == 622  # of 635
  assert sum(example.label == "1" for example in examples) == 312
