"""Are degenerate predictions scored soberly? Constant, empty, NaN; medians over seeds; GLUE's two averages."""

import math

import numpy as np
import pytest

from electra_jax.finetuning import ensembles
from electra_jax.tasks import scoring

ZERO, ONE = "0", "1"
TABLE = [  # metrics, predictions, labels, values
  (["accuracy", "f1", "matthews"], [ONE, ZERO, ONE, ONE], [ONE, ZERO, ZERO, ONE], [0.75, 0.8, 0.5773502691896258]),
  (["accuracy", "f1", "matthews"], [ZERO] * 4, [ONE, ZERO, ZERO, ONE], [0.5, 0.0, 0.0]),  # constant
  (["f1"], [ZERO, ZERO], [ZERO, ZERO], [0.0]),
  (["pearson", "spearman"], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0], [0.9819805060619659, 1.0]),
  (["pearson", "spearman"], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0], [0.0, 0.0]),  # constant
  (["pearson", "spearman"], [2.0, math.nan, 2.0], [1.0, 2.0, 3.0], [math.nan, math.nan]),
  (["accuracy"], [None, ZERO], [ZERO, ZERO], [math.nan]),  # logits that are NaN
  (["accuracy", "matthews", "spearman"], [], [], [math.nan] * 3),  # empty
  (["tag_accuracy"], [("O", "B")], [("O", "O")], [0.5]),
]


@pytest.mark.parametrize("names,predictions,labels,values", TABLE)
def test_metrics(names, predictions, labels, values):
  assert list(scoring.score(names, predictions, labels).values()) == pytest.approx(values, nan_ok=True)


def test_a_run_that_failed_counts_as_the_worst():
  values = [math.nan, 0.5, math.nan, 0.7, 0.6]
  assert scoring.best(values) == 3
  assert scoring.summarise(values) == pytest.approx(
    {"median": 0.5, "min": 0.5, "max": 0.7, "sd": 0.1, "num_runs": 3, "num_failed": 2})
  assert math.isnan(scoring.summarise([math.nan, math.nan, 0.5])["median"])
  nothing = scoring.summarise([math.nan, math.nan])
  assert math.isnan(nothing["median"]) and nothing["num_runs"] == 0 and scoring.best([math.nan]) is None


def test_both_averages_of_glue():
  one = dict.fromkeys(("accuracy", "f1", "matthews", "pearson", "matched/accuracy"), 1.0)
  one |= {"spearman": 0.2, "mismatched/accuracy": 0.0}
  scores = {task: dict(one) for task in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")}
  assert scoring.glue_score(scores) == pytest.approx((7 + 0.2) / 8)  # WNLI and the mismatched set do not count
  assert math.isnan(scoring.leaderboard_score(scores))
  assert scoring.leaderboard_score({**scores, "wnli": {"accuracy": 0.0}}) == pytest.approx((6 + 0.6 + 0.5) / 9)
  assert math.isnan(scoring.glue_score({k: v for k, v in scores.items() if k != "rte"}))


def test_an_ensemble_averages_probabilities_and_leaves_nan_out():
  sure, unsure = np.array([[4.0, 0.0]], np.float32), np.array([[0.0, 0.5]], np.float32)
  broken = np.array([[np.nan, 0.0]], np.float32)
  found = ensembles.average([{"classification_head": x} for x in (unsure, sure, unsure, broken)], "classification")
  assert found["classification_head"].argmax() == 0 and np.isfinite(found["classification_head"]).all()
  scores = ensembles.average([{"classification_head": np.array([[x]])} for x in (1.0, 2.0)], "regression")
  assert scores["classification_head"].tolist() == [[1.5]]


ENTITIES = [  # tags -> (type, first word, last word); what seqeval 1.2.2 finds too
  ("B-A I-A O B-A", [("A", 0, 1), ("A", 3, 3)]),
  ("I-A I-A B-A I-B", [("A", 0, 1), ("A", 2, 2), ("B", 3, 3)]),
  ("B-A E-A I-A S-A S-A", [("A", 0, 1), ("A", 2, 2), ("A", 3, 3), ("A", 4, 4)]),
  ("O O", []),
  ("B I O I", [("", 0, 1), ("", 3, 3)]),
  ("B-A-x I-A-x I-A", [("A-x", 0, 1), ("A", 2, 2)]),
  ("", []),
]


@pytest.mark.parametrize("tags,found", ENTITIES)
def test_entities(tags, found):
  assert scoring.entities(tags.split()) == found


SCHEMES = [  # predicted, gold -> F1, of seqeval 1.2.2 too (of BILOU and BMES once written as BIOES)
  ("B-A M-A O O", "B-A M-A E-A O", 0.0),  # BMES, cut short
  ("B-A E-A O S-A", "B-A E-A O S-A", 1.0),
  ("B-A M-A E-A S-B", "B-A M-A E-A S-A", 1 / 2),
  ("B E S B M E", "B E S S B E", 4 / 7),  # segmentation of words, without types
  ("B-A I-A L-A U-A U-A", "B-A I-A L-A U-A U-A", 1.0),  # BILOU: two neighbours of one word each
  ("B-A L-A L-A O", "B-A I-A L-A O", 0.0),
  ("U-A O U-B", "U-A O U-A", 1 / 2),
  ("B-A W-A E-A O", "B-A M-A E-A W-B", 0.0),  # BMEWO
  ("I-A I-A B-A O", "I-A B-A I-A O", 0.0),  # IOB1: B- only where another entity of the type ends
  ("I-A I-A B-A I-A", "I-A I-A B-A I-A", 1.0),
  ("I-A O I-B I-B", "B-A O B-B I-B", 1.0),  # BIO
  ("B-A E-A S-B", "B-A E-A O", 2 / 3),  # BIOES
  ("B_A I_A O", "B_A I_A O", 1.0),
  ("B-A I-A I-B", "B-A I-A I-A", 0.0),
]


@pytest.mark.parametrize("predicted, gold, value", SCHEMES)
def test_every_scheme_is_recognised(predicted, gold, value):
  assert scoring.entity_f1([predicted.split()], [gold.split()]) == pytest.approx(value)


def test_the_scheme_is_that_of_the_whole_set_of_tags():
  known = ["O", "B-A", "I-A", "L-A", "U-A"]
  assert scoring.entities(["L-A", "U-A"], known) == [("A", 0, 0), ("A", 1, 1)]
  assert scoring.entities(["U", "L"], ["U", "L", "NOUN"]) == [("U", 0, 0), ("L", 1, 1)]  # no prefixes
  assert scoring.score(["entity_f1"], [["L", "L"]], [["U", "U"]], ["U", "L", "NOUN"]) == {"entity_f1": 0.0}


def test_entity_f1():
  assert scoring.entity_f1([("B-A", "I-A", "O")], [("B-A", "O", "O")]) == 0.0
  assert scoring.entity_f1([("B-A", "O", "B-B"), ("B-A",)], [("B-A", "O", "B-C"), ("O",)]) == pytest.approx(2 / 5)
  assert scoring.entity_f1([("O",)], [("O",)]) == 0.0 and math.isnan(
    scoring.score(["entity_f1"], [None], [("O",)])["entity_f1"])
