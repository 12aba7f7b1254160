"""Warning signs: which numbers bring which line, and the same line in every place that prints one."""

import json

import pytest
from ml_collections import ConfigDict

from electra_jax.training import warning_signs
from tests.conftest import ROOT


def config(name="rtd", **objective):
  return ConfigDict({"task": {"name": ""}, "objective": {"name": name, "generator_steps": 0, **objective},
                     "train": {"num_steps": 1000, "batch_size": 8}})


def row(step=500, **values):
  return {"step": step, "split": "eval", "epoch": 2.0, "mlm/loss": 4.0, "eval/unigram_entropy": 6.0, "rtd/auc": 0.8,
          "rtd/recall": 0.1} | {name.replace("__", "/"): value for name, value in values.items()}


HEALTHY = row(epoch=1.0)  # of 4,000 examples
SIGNS = {  # what is wrong -> (config, rows, words of the lines)
  "nothing": (config(), [HEALTHY], []),
  "a masked LM alone": (config("mlm"), [{k: v for k, v in HEALTHY.items() if "rtd" not in k}], []),
  "collapsed, also early": (config(), [row(50, epoch=0.1, rtd__auc=0.5)], ["halve --config.optimizer.learning_rate"]),
  "slow, but early": (config(), [row(50, epoch=0.1, rtd__auc=0.53)], []),
  "both on their plateaus": (config(), [row(50, epoch=0.1, rtd__auc=0.5, mlm__loss=6.1)], []),
  "the first of two stages": (config("two_stage", generator_steps=500), [row(epoch=1.0, rtd__auc=0.5)], []),
  "an AUC of 0.584": (config(), [row(epoch=1.0, rtd__auc=0.584, rtd__recall=0.0)],
                      ["AUC 0.58, chance is 0.5; recall 0.0 %"]),
  "ranks, but marks nothing": (config(), [row(epoch=1.0, rtd__recall=0.0)], ["marks none"]),
  "no discriminator": (config("all_tokens_mlm"), [{k: v for k, v in row(epoch=1.0, rtd__recall=0.0).items()
                                                   if k != "rtd/auc"}], []),
  "unigram": (config(), [row(epoch=1.0, mlm__loss=5.97)], ["no better than the frequencies"]),
  "rises": (config(), [HEALTHY, row(600, epoch=1.2, mlm__loss=4.2)], ["4.00 at its best, now 4.20"]),
  "rises, of an adversary": (config("adversarial"), [HEALTHY, row(600, epoch=1.2, mlm__loss=4.2)], []),
  "few examples": (config(), [row(epoch=8.0)], ["about 500 examples"]),
  "many passes of few": (config(), [row(epoch=40.0)], ["about 100 examples", "80 passes"]),
  "NaN is no sign": (config(), [row(epoch=1.0, mlm__loss=float("nan"), rtd__auc=float("nan"))], []),
  "no evaluation": (config(), [{"step": 900, "split": "train"}], []),
}


@pytest.mark.parametrize("name", SIGNS)
def test_signs(name):
  given, rows, words = SIGNS[name]
  found = warning_signs.find(given, rows)
  assert len(found) == len(words), found
  assert all(word in line for word, line in zip(words, found)), found


def test_every_section_is_in_the_page():
  page = (ROOT / warning_signs.PAGE).read_text()
  assert all(f"\n### {section}\n" in page for section, _ in warning_signs.SIGNS)


def test_console_summary_report_and_card_agree(tmp_path):
  from configs import tiny
  from electra_jax import config as config_lib
  from electra_jax import metrics
  from electra_jax.exchange import model_card
  from electra_jax.tools import report, summary
  from electra_jax.training import evaluation
  from tests.test_evaluation import Recorder

  given = tiny.get_config("tiny")
  resolved, said = config_lib.resolve(given), Recorder()
  values = {"loss": 9.0, "mlm/loss": 4.0, "mlm/perplexity": 54.6, "mlm/accuracy": 0.1, "eval/unigram_entropy": 6.0,
            "rtd/loss": 0.3, "rtd/auc": 0.5, "rtd/precision": 0.0, "rtd/recall": 0.0}
  evaluation.log(values, 40, resolved, said, said)
  (line, sign) = said.messages
  assert "nothing replaced was marked" in line and "tells nothing apart" in sign
  config_lib.save(str(tmp_path / "config.json"), given, resolved)
  (tmp_path / metrics.FILE_NAME).write_text(json.dumps({"step": 40, "split": "eval", **values}) + "\n")
  lines = summary.rows_of(str(tmp_path))
  assert ("warning", sign, "") in lines and ("replaced tokens", "nothing replaced was marked", "") in lines
  assert "tells nothing apart" in report.results_of(report.read(str(tmp_path)))
  described = {"architectures": ["ElectraForPreTraining"], "model_type": "electra", "num_hidden_layers": 2,
               "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 1024}
  card = model_card.make("discriminator", described, resolved, 40, 1000, {"step": 40, "split": "eval", **values},
                         signs=warning_signs.find(resolved, metrics.read_rows(str(tmp_path))))
  assert f"**Warning.** {sign}" in card
