"""What does a held-out evaluation say beside its numbers?"""

import pytest

from electra_jax import evaluation


class Recorder:
  """In place of the metrics writer and of the progress bar."""

  def __init__(self):
    self.rows, self.messages = [], []

  def write(self, step, split, values):
    self.rows.append((step, split, values))

  def message(self, text):
    self.messages.append(text)


@pytest.mark.parametrize("mlm_loss, auc, is_last_phase, is_told", [
  (4.3, 0.5, True, True),  # a rate that is too high, ELECTRA-Small in four layers at 1e-3
  (4.3, 0.53, True, False),  # slow, but it learns
  (6.0, 0.5, True, False),  # both are on their plateaus: too early to say
  (4.3, 0.5, False, False),  # the first of two stages trains the generator alone
])
def test_a_collapsed_discriminator_is_told(mlm_loss, auc, is_last_phase, is_told):
  said = Recorder()
  values = {"mlm/loss": mlm_loss, "rtd/auc": auc, "eval/unigram_entropy": 5.9}
  evaluation.log(values, 100, said, said, is_last_phase=is_last_phase)
  assert said.rows == [(100, "eval", values)] and said.messages[0].startswith("held-out at step 100: mlm/loss")
  assert len(said.messages) == 1 + is_told
  assert not is_told or "halve --config.optimizer.learning_rate" in said.messages[1]


def test_a_masked_lm_has_no_discriminator_to_tell_about():
  said = Recorder()
  evaluation.log({"mlm/loss": 3.0, "eval/unigram_entropy": 5.9}, 100, said, said)
  assert len(said.messages) == 1
