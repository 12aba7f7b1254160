"""Has a batch the same losses and gradients in PyTorch? A run's newest parameters and its own next batch, both sides.

  python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny
  python -m benchmarks.gradient_peer runs/tiny

Every objective of the papers' tables: mlm, mlm_nsp, rtd, electra_15, replace_mlm, all_tokens_mlm. The networks are
transformers', with our parameters; rows and masks are the run's, the replacements are drawn once and given to both;
dropout is off, all is float32. Prints each loss, and by how much the gradients differ, as a share of each one's norm;
ends with status 1 where a share is above --tolerance. With --draws=20, of mlm and rtd, each library then draws dropout
and replacements of its own so many times: the mean losses and their standard errors.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from typing import NamedTuple

import jax
import numpy as np
import torch
import transformers
from jaxtyping import PyTree
from ml_collections import ConfigDict, FrozenConfigDict
from safetensors.numpy import load_file
from torch.nn import functional

from benchmarks import pretrain_peer, step_peer, torch_losses
from electra_jax import config as config_lib
from electra_jax import objectives, sharding
from electra_jax.errors import UserError
from electra_jax.models.bert import make_transformer_config
from electra_jax.objectives import all_tokens_mlm, generators, replace_mlm
from electra_jax.objectives.base import Parts
from electra_jax.tools import export, export_networks
from electra_jax.training import checkpoints, inputs

KEY_BIAS = "key.bias"  # moves all scores of a query alike, which softmax does not see: its gradient is rounding
GATE = "encoder/copy_head/output"  # All-Tokens MLM's; transformers has no place for it
# Objective -> into how many keys its loss splits its own; the first two are for dropout and for the draws.
NUM_KEYS = {"mlm": 0, "mlm_nsp": 0, "rtd": 4, "electra_15": 4, "replace_mlm": 3, "all_tokens_mlm": 3}


class Side(NamedTuple):
  """What one library computes of a batch."""

  losses: dict[str, float]
  gradients: dict[str, np.ndarray]  # by transformers' names, below that of the network


def in_float32(workdir: str, dropout: bool) -> FrozenConfigDict:
  """The run's config in float32, without kernels; every rate of dropout is 0 or the run's.

  Raises:
    SystemExit: its objective has no peer.
  """
  config = ConfigDict(config_lib.load(workdir).to_dict())
  if config.objective.name not in NUM_KEYS or config.generator.kind != "learned":
    raise SystemExit(f"The peer has {', '.join(NUM_KEYS)} with a learned generator; not "
                     f"{config.objective.name}, {config.generator.kind}.")
  if not dropout:
    for network in (config.model, config.generator):
      network.update({key: 0.0 for key in network if key.endswith("dropout_prob")})
  config.train.compute_dtype, config.train.kernels = "float32", "xla"
  return FrozenConfigDict(config)


def joined(networks: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  return {f"{network}/{name}": value for network, found in networks.items() for name, value in found.items()}


def write(folder: str, source: export_networks.ExportedRun) -> dict[str, str]:
  """Network -> its folder, as the export writes parameters; what two networks share is in both."""
  names, _ = export.write_hf(folder, source)
  return {name: os.path.join(folder, name) for name in names}


def by_their_names(source: export_networks.ExportedRun) -> dict[str, np.ndarray]:
  """Parameters, or anything of their shapes, under the names that they have in transformers."""
  with tempfile.TemporaryDirectory() as folder:
    found = joined({name: load_file(os.path.join(place, "model.safetensors"))
                    for name, place in write(folder, source).items()})
  return found | {path: value for path, value in source.params.items() if path.startswith(GATE)}


# ---- ours ----


def parts_of(config, source: export_networks.ExportedRun, token_counts: np.ndarray | None) -> Parts:
  """What our objectives are made of."""
  transformer = make_transformer_config(config.model, num_tokens=source.tokenizer.vocab_size,
                                        dtype="float32", remat="none", kernels="xla")
  return Parts(transformer, config.generator, config.objective, config.train.num_steps, token_counts)


def ours(config, source: export_networks.ExportedRun, params, batch, token_counts) -> tuple[Side, np.ndarray]:
  """Our side, and the text that the kept encoder read."""
  parts = parts_of(config, source, token_counts)
  objective = objectives.make(*parts)
  make_model = {"replace_mlm": replace_mlm, "all_tokens_mlm": all_tokens_mlm}.get(config.objective.name, generators)
  generate = generators.make(make_model.make_model(parts), parts)
  rng, num_keys = jax.random.key(0), NUM_KEYS[config.objective.name]

  @jax.jit
  def compute(params, batch):
    loss = jax.value_and_grad(objective.phases[0].loss, has_aux=True)
    (_, pairs), gradients = loss(params, batch, rng, True, objective.count_targets(batch))
    if not num_keys:
      return pairs, gradients, batch["masked_input_ids"]
    return pairs, gradients, generate(params, batch, *jax.random.split(rng, num_keys)[:2], True)[2].ids

  pairs, gradients, read = jax.device_get(compute(params, batch))
  losses = {name: float(total / weight) for name, (total, weight) in pairs.items() if name.endswith("/loss")}
  return Side(losses, by_their_names(source._replace(params=sharding.by_path(gradients)))), read


# ---- theirs ----


def mlm_loss(network, read: torch.Tensor, rows: dict[str, torch.Tensor]) -> torch.Tensor:
  """Of a text with masks or replacements."""
  return torch_losses.masked_loss(torch_losses.masked_logits(network, read, rows), rows)


def nsp_loss(network, rows: dict[str, torch.Tensor]) -> torch.Tensor:
  """Of BertForPreTraining, over the rows that have a label."""
  is_pair = rows["nsp_label"] >= 0
  hidden = torch_losses.encode(network.bert, rows["masked_input_ids"], rows)
  logits = network.cls.seq_relationship(network.bert.pooler(hidden))
  return functional.cross_entropy(logits[is_pair], rows["nsp_label"][is_pair])


def judged_tokens(rows: dict[str, torch.Tensor], masked_only: bool) -> torch.Tensor:
  """[batch, length]: all real tokens, or those that were masked."""
  real = rows["attention_mask"] > 0
  if masked_only:
    return torch.zeros(real.shape).scatter_add_(1, rows["masked_positions"], rows["masked_weights"]) > 0
  return real


def all_tokens_loss(network, gate: dict[str, torch.Tensor], read: torch.Tensor, rows: dict[str, torch.Tensor]):
  """-log(D [the input is the original] + (1 - D) softmax), a mean over all real tokens."""
  encoder, head = step_peer.parts_of(network)
  hidden = torch_losses.encode(encoder, read, rows)
  copied = torch.sigmoid(hidden @ gate[f"{GATE}/kernel"] + gate[f"{GATE}/bias"])[..., 0]
  chosen = head(hidden).softmax(-1).gather(-1, rows["input_ids"][..., None])[..., 0]
  likelihood = copied * (read == rows["input_ids"]) + (1 - copied) * chosen
  return -likelihood[rows["attention_mask"] > 0].log().mean()


def theirs(config, source: export_networks.ExportedRun, batch, read: np.ndarray) -> Side:
  """transformers' side of the same batch and the same draws."""
  with tempfile.TemporaryDirectory() as folder:
    networks = {name: load(place) for name, place in write(folder, source).items()}
  gate = {path: torch.tensor(value, requires_grad=True) for path, value in source.params.items()
          if path.startswith(GATE)}
  rows, c = torch_losses.tensors(batch), config.objective
  text = torch.from_numpy(np.array(read)).long()
  generator = networks.get("generator")
  kept = next(network for name, network in networks.items() if name != "generator")
  if generator is not None:
    step_peer.share(generator, kept, c.weight_tying)
  parts = {"mlm/loss": (c.mlm_weight if generator else 1.0,
                        mlm_loss(generator or kept, rows["masked_input_ids"], rows))}
  if c.name == "mlm_nsp":
    parts["nsp/loss"] = 1.0, nsp_loss(kept, rows)
  if c.name in ("rtd", "electra_15"):
    judged = judged_tokens(rows, masked_only=c.name == "electra_15")
    share = judged.sum() / (rows["attention_mask"] > 0).sum()  # each keeps the weight that it has in ELECTRA
    loss = torch_losses.judged_loss(*torch_losses.judge(kept, text, rows), judged)
    parts["rtd/loss"] = c.rtd_weight * share, loss
  if c.name == "replace_mlm":
    parts["replace_mlm/loss"] = c.encoder_mlm_weight, mlm_loss(kept, text, rows)
  if c.name == "all_tokens_mlm":
    parts["all_tokens_mlm/loss"] = c.encoder_mlm_weight, all_tokens_loss(kept, gate, text, rows)
  sum(weight * loss for weight, loss in parts.values()).backward()
  gradients = joined({name: {key: p.grad.numpy() for key, p in network.named_parameters() if p.grad is not None}
                      for name, network in networks.items()})
  return Side({name: loss.item() for name, (_, loss) in parts.items()},
              gradients | {path: value.grad.numpy() for path, value in gate.items()})


def load(folder: str) -> torch.nn.Module:
  """The network of a folder by the class that its config names, without dropout."""
  transformers.utils.logging.disable_progress_bar()
  with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
    return getattr(transformers, json.load(file)["architectures"][0]).from_pretrained(folder).eval()


# ---- both ----


class Run(NamedTuple):
  """What a workdir has for both sides."""

  source: export_networks.ExportedRun
  params: PyTree
  batch: dict[str, np.ndarray]  # the next one
  token_counts: np.ndarray | None


def read_run(config, workdir: str) -> Run:
  """The newest parameters."""
  step, params = checkpoints.load_params(workdir)
  data = inputs.open_data(config_lib.load(workdir), workdir)
  source = export_networks.ExportedRun(workdir, config, step, data.tokenizer, sharding.by_path(jax.device_get(params)))
  return Run(source, params, data.batch_at(min(step, config.train.num_steps - 1)), data.token_counts)


def compare(workdir: str) -> tuple[int, Side, Side, dict[str, float]]:
  """(step, ours, theirs, {tensor: norm of the difference / norm of theirs})."""
  config = in_float32(workdir, dropout=False)
  source, params, batch, token_counts = read_run(config, workdir)
  mine, read = ours(config, source, params, batch, token_counts)
  peer = theirs(config, source, batch, read)
  if mine.gradients.keys() != peer.gradients.keys() or mine.losses.keys() != peer.losses.keys():
    raise SystemExit(f"Only one side has {sorted(mine.gradients.keys() ^ peer.gradients.keys())}, "
                     f"{sorted(mine.losses.keys() ^ peer.losses.keys())}")
  shares = {name: float(np.linalg.norm(mine.gradients[name] - value) / np.linalg.norm(value))
            for name, value in peer.gradients.items() if not name.endswith(KEY_BIAS)}
  return source.step, mine, peer, shares


def with_dropout(workdir: str, draws: int) -> dict[str, list[list[float]]]:
  """Loss -> [of each of our draws, of each of transformers']: of dropout and of replacements.

  Raises:
    SystemExit: the objective is neither mlm nor rtd.
  """
  config = in_float32(workdir, dropout=True)
  if config.objective.name not in pretrain_peer.LOSSES:
    raise SystemExit(f"--draws has {', '.join(pretrain_peer.LOSSES)}, not {config.objective.name}.")
  source, params, batch, token_counts = read_run(config, workdir)
  objective = objectives.make(*parts_of(config, source, token_counts))

  @jax.jit
  def draw(params, batch, rng):
    _, pairs = objective.phases[0].loss(params, batch, rng, True, objective.count_targets(batch))
    return {name: total / weight for name, (total, weight) in pairs.items() if name.endswith("/loss")}

  with tempfile.TemporaryDirectory() as folder:
    networks = {name: load(place).train() for name, place in write(folder, source).items()}
  in_order = [networks[name] for name in sorted(networks, reverse=True)]  # the generator first
  rows = torch_losses.tensors(batch)
  both = [jax.device_get(draw(params, batch, jax.random.key(seed))) for seed in range(draws)], []
  with torch.no_grad():
    for seed in range(draws):
      torch.manual_seed(seed)
      losses, _ = pretrain_peer.LOSSES[config.objective.name](in_order, rows)
      both[1].append(losses)
  return {name: [[float(one[name]) for one in side] for side in both] for name in both[1][0]}


def main() -> int:
  """The command; returns its exit status."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdir")
  parser.add_argument("--tolerance", type=float, default=1e-3, help="largest share of a gradient's norm")
  parser.add_argument("--draws", type=int, default=0, help="of dropout: compare mean losses over so many, too")
  options = parser.parse_args()
  try:
    step, mine, peer, shares = compare(options.workdir)
  except UserError as error:
    print(error, file=sys.stderr)
    return 2
  for name, value in peer.losses.items():
    print(f"{name} after step {step:,}: ours {mine.losses[name]:.6f}, transformers' {value:.6f}")
  worst = max(shares, key=shares.get)
  print(f"gradients of {len(shares)} tensors differ by {np.median(list(shares.values())):.1e} of their norm in the "
        f"median, at most by {shares[worst]:.1e} ({worst.lstrip('/')})")
  for name, both in (with_dropout(options.workdir, options.draws) if options.draws > 1 else {}).items():
    said = (f"{statistics.fmean(side):.4f} +- {statistics.stdev(side) / len(side) ** 0.5:.4f}" for side in both)
    print("{} with dropout, mean of {} draws: ours {}, transformers' {}".format(name, options.draws, *said))
  return int(shares[worst] > options.tolerance)


if __name__ == "__main__":
  sys.exit(main())
