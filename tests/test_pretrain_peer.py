"""Does PyTorch's side of a pre-training learn from our batches, go on after a kill, and leave weights that we read?"""

import pytest
import torch

from benchmarks import pretrain_peer
from electra_jax import config as config_lib
from electra_jax.finetuning import pretrained
from tests.test_gradient_peer import make_run

STEPS = 6


def start(run):
  torch.manual_seed(0)
  return pretrain_peer.Trained(config_lib.load(run), run, "cpu")


def losses(trained, begin, end=STEPS):
  return [float(value) for _, found, _ in trained.train(begin, end) for value in found.values()]


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_it_goes_on_after_a_kill(name, tmp_path):
  run, state = make_run(tmp_path, name, dropout=0.0), str(tmp_path / "state.pt")
  whole = losses(start(run), 0)
  first, second = start(run), start(run)
  assert second.restore(state) == 0  # nothing is there yet
  assert losses(first, 0, 3) == pytest.approx(whole[:len(whole) // 2])
  first.keep(3, state)
  assert second.restore(state) == 3
  assert losses(second, 3) == pytest.approx(whole[len(whole) // 2:])
  pretrain_peer.save(second.networks[-1], run, str(tmp_path / "peer"))
  assert pretrained.load(str(tmp_path / "peer")).model["hidden_size"] == 32


def test_what_it_prints():
  rows = [{"mlm/loss": 2.0, "rtd/loss": 0.5}, {"mlm/loss": 4.0, "rtd/loss": 0.3}]
  theirs = [{"mlm/loss": torch.tensor(1.0), "rtd/loss": torch.tensor(0.1)}]
  answers = [(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0]), torch.tensor([True, True, False]))]
  assert pretrain_peer.line(1200, rows, theirs, answers) == (
    "step   1,200  mlm/loss: ours 3.0000, peer 1.0000  rtd/loss: ours 0.4000, peer 0.1000  (AUC 1.000)")
