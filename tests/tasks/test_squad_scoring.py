"""Are SQuAD's metrics the official ones? Worked by hand, with degenerate answers, and thresholds tried one by one."""

import math
import random

import pytest

from electra_jax.tasks import squad_scoring as scoring

NORMALISED = [  # text, what the official scripts compare
  ("The Cat", "cat"), ("a.b", "ab"), ("an  apple\r\n", "apple"), ("theatre", "theatre"), ("A", ""), ("", ""),
  ("the-end", "theend"), ("U.S.", "us"), ("$5,000", "5000"), ("naïve", "naïve"), ("“the”", "“ ”"),
  ("1854–55", "1854–55"),
]
PAIRS = [  # answer, reference, exact, F1 of v1.1, F1 of v2.0
  ("Denver Broncos", "the Denver Broncos.", 1, 1, 1),
  ("Broncos", "Denver Broncos", 0, 2 / 3, 2 / 3),
  ("Denver Denver Broncos", "Denver Broncos", 0, 0.8, 0.8),  # a word counts as often as in both
  ("Carolina", "Denver", 0, 0, 0),
  ("", "Denver", 0, 0, 0),
  ("the", "a", 1, 0, 1),  # nothing is left of both: v1.1's F1 has no common word
  ("", "", 1, 0, 1),
  ("gold", "gold gold gold gold", 0, 0.4, 0.4),
]


@pytest.mark.parametrize("text, wanted", NORMALISED)
def test_normalisation(text, wanted):
  assert scoring.normalise(text) == wanted


@pytest.mark.parametrize("answer, gold, exact, v1, v2", PAIRS)
def test_pairs(answer, gold, exact, v1, v2):
  assert scoring.exact(answer, gold) == exact
  assert (scoring.f1_v1(answer, gold), scoring.f1_v2(answer, gold)) == pytest.approx((v1, v2))


def test_v1_takes_the_best_reference():
  golds = [("Denver Broncos", "Broncos"), ("the 1990s",)]
  assert scoring.score_v1(["broncos", "in 1990s"], golds) == pytest.approx({"f1": (1 + 2 / 3) / 2, "exact": 0.5})


# Answer, odds of "no answer", references. At threshold 0 the second and the last question stay unanswered.
QUESTIONS = [("Normandy", -2.0, ("Normandy",)), ("Rollo", -1.0, ()), ("France", 3.0, ()),
             ("10th century", 1.0, ("10th and 11th centuries", "in the 10th century"))]


def test_v2_by_hand():
  found = scoring.score_v2(*zip(*QUESTIONS))
  assert found == pytest.approx({
    "exact": 0.5, "f1": 0.5, "has_answer_exact": 0.5, "has_answer_f1": 0.5, "no_answer_accuracy": 0.5,
    "best_exact": 0.75,  # only the first answered: 1 + 2 right
    "best_f1": 0.75})
  raw = scoring.raw_scores(scoring.f1_v2, [q[0] for q in QUESTIONS], [q[2] for q in QUESTIONS])
  assert raw == pytest.approx([1, 0, 0, 0.8])
  assert scoring.best_threshold(raw, *zip(*QUESTIONS)).value == -2.0


def test_the_best_threshold_is_the_best_of_all():
  rng = random.Random(0)
  for _ in range(200):
    count = rng.randint(1, 8)
    answers = [rng.choice(["x", "y z"]) for _ in range(count)]
    golds = [rng.choice([(), ("x",), ("y",), ("the",)]) for _ in range(count)]
    odds = [float(rng.randint(-2, 2)) for _ in range(count)]  # with ties
    found = scoring.score_v2(answers, odds, golds)
    tried = [scoring.score_v2(answers, odds, golds, t) for t in (-9.0, *odds)]
    assert found["best_f1"] == pytest.approx(max(row["f1"] for row in tried))
    assert found["best_exact"] == pytest.approx(max(row["exact"] for row in tried))
    raw = scoring.raw_scores(scoring.f1_v2, answers, golds)
    best = scoring.best_threshold(raw, answers, odds, golds)
    assert scoring.score_v2(answers, odds, golds, best.value)["f1"] == pytest.approx(best.score)


DEGENERATE = {  # answers, odds, references -> v2.0's exact, F1, best F1
  "all unanswerable, never answered": (["x", "y"], [1.0, 1.0], [(), ()], 1, 1, 1),
  "all unanswerable, always answered": (["x", "y"], [-1.0, -1.0], [(), ()], 0, 0, 1),
  "all answerable, never answered": (["x", "y"], [1.0, 1.0], [("x",), ("z",)], 0, 0, 0.5),
  "empty spans": (["", ""], [-1.0, -1.0], [("x",), ()], 0.5, 0.5, 0.5),
  "a reference without a word": (["", "x"], [-1.0, -1.0], [("the",), ("a",)], 0.5, 0.5, 0.5),
  "constant": (["x", "x"], [-1.0, -1.0], [("x",), ("y",)], 0.5, 0.5, 0.5),
}


@pytest.mark.parametrize("what", DEGENERATE)
def test_degenerate_answers(what):
  answers, odds, golds, exact, f1, best = DEGENERATE[what]
  found = scoring.score_v2(answers, odds, golds)
  assert (found["exact"], found["f1"], found["best_f1"]) == (exact, f1, best)


def test_no_number_is_no_score():
  for found in (scoring.score_v1([None, "x"], [("x",), ("x",)]), scoring.score_v1([], []),
                scoring.score_v2([None], [0.0], [("x",)]), scoring.score_v2(["x"], [math.nan], [("x",)]),
                scoring.score_v2([], [], [])):
    assert found and all(math.isnan(value) for value in found.values())
  only = scoring.score_v2(["x"], [-1.0], [("x",)])
  assert only["f1"] == 1 and math.isnan(only["no_answer_accuracy"])
