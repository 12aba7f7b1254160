"""Are a batch's losses and gradients PyTorch's? The whole objectives, on shards, with random parameters."""

import math
import statistics

import pytest

from benchmarks import gradient_peer
from electra_jax import config as config_lib
from electra_jax.training import inputs
from tests import small_runs
from tests.workdirs import save_random_params

NARROW = {"model__embedding_size": 16}  # a projection: all networks are transformers' ELECTRA
BERT = {"data__masking__mask_share": 0.8, "data__masking__random_share": 0.1}
RUNS = {
  "rtd": NARROW | {"objective__weight_tying": "embeddings"},
  "rtd, token table shared": {"objective__weight_tying": "token_embeddings"},
  "electra_15": {},
  "replace_mlm": NARROW,
  "all_tokens_mlm": NARROW,
  "mlm": BERT,
  "mlm_nsp": BERT | {"data__format": "SEGMENT-PAIR"},
}


def make_run(root, name, dropout=0.1):
  """A workdir with shards and random parameters, as a run leaves it behind at step 3."""
  place = small_runs.Place(root)
  small_runs.write_corpus(place.corpus, num_documents=20)
  sizes = {"hidden_size": 32, "embedding_size": 32, "num_hidden_layers": 2, "hidden_dropout_prob": dropout,
           "attention_probs_dropout_prob": dropout}
  given = small_runs.small(place, objective__name=name.split(",")[0],
                           **{f"model__{key}": value for key, value in sizes.items()} | RUNS[name])
  config = config_lib.resolve(given)
  place.run.mkdir()
  config_lib.save(str(place.run / "config.json"), given, config)
  save_random_params(str(place.run), config, inputs.open_data(config, str(place.run)).tokenizer, step=3)
  return str(place.run)


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_gradients(name, tmp_path):
  step, ours, theirs, shares = gradient_peer.compare(make_run(tmp_path, name))
  assert step == 3 and len(ours.losses) == {"mlm": 1}.get(name, 2)
  assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
  assert max(shares.values()) < 1e-4, max(shares, key=shares.get)


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_losses_with_dropout(name, tmp_path):
  found = gradient_peer.with_dropout(make_run(tmp_path, name, dropout=0.2), draws=100)
  assert set(found) == {"mlm/loss", "rtd/loss"} if name == "rtd" else {"mlm/loss"}
  for ours, theirs in found.values():
    mean, their_mean = map(statistics.fmean, (ours, theirs))
    spread, their_spread = map(statistics.stdev, (ours, theirs))
    assert mean == pytest.approx(their_mean, abs=3 * math.hypot(spread, their_spread) / 10)
    assert spread == pytest.approx(their_spread, rel=0.3)  # as much dropout, at as many places


def test_an_objective_without_a_peer(tmp_path):
  place = small_runs.Place(tmp_path)
  given = small_runs.small(place, objective__name="contrastive")
  config_lib.save(str(tmp_path / "config.json"), given, config_lib.resolve(given))
  with pytest.raises(SystemExit, match="not contrastive"):
    gradient_peer.compare(str(tmp_path))
