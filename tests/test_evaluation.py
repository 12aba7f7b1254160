"""What does a held-out evaluation say next to its numbers?"""

from ml_collections import ConfigDict

from electra_jax.training import evaluation


class Recorder:
  """In place of the metrics writer and of the progress bar."""

  def __init__(self):
    self._rows, self.messages = [], []

  def write(self, step, split, values):
    self._rows.append({"step": step, "split": split, **values})

  def rows(self):
    return self._rows

  def message(self, text):
    self.messages.append(text)


def test_an_evaluation_is_one_line_and_a_sign_another():
  said = Recorder()
  config = ConfigDict({"task": {"name": ""}, "objective": {"name": "rtd"}, "train": {"num_steps": 1000}})
  values = {"mlm/loss": 4.3, "rtd/auc": 0.5, "eval/unigram_entropy": 5.9}
  evaluation.log(values, 100, config, said, said)
  assert said.rows() == [{"step": 100, "split": "eval", **values}]
  assert said.messages[0] == "step 100, held-out: MLM loss 4.300 (unigram entropy 5.900); RTD AUC 0.500"
  assert len(said.messages) == 2 and "halve --config.optimizer.learning_rate" in said.messages[1]


def test_a_masked_lm_has_no_discriminator_to_tell_about():
  said = Recorder()
  config = ConfigDict({"task": {"name": ""}, "objective": {"name": "mlm"}, "train": {"num_steps": 1000}})
  evaluation.log({"mlm/loss": 3.0, "eval/unigram_entropy": 5.9}, 100, config, said, said)
  assert len(said.messages) == 1
