"""Does PyTorch learn the same from the same batches? ELECTRA pre-trained by transformers on a run's own shards.

  python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny
  python -m tests.peers.pretrain_peer runs/tiny

Reads the config, the tokenizer and the batches of a workdir, builds the networks anew and trains them with torch's
AdamW: the same rows, masks, rates and weights of the losses; other initial draws, samples and dropout. It prints, for
each window of the run's log, our losses beside its own. On a CPU in float32, so for small models only.
"""

import argparse

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from electra_jax import config as config_lib
from electra_jax import inputs, metrics, optim
from tests.peers import step_peer, torch_losses


def losses(networks, rows: dict[str, torch.Tensor]):
  """(generator's loss, discriminator's, its logits and labels of the real tokens)."""
  generator, discriminator = networks
  ids, positions, is_target = rows["input_ids"], rows["masked_positions"], rows["masked_weights"] > 0
  logits = torch_losses.masked_logits(generator, rows["masked_input_ids"], rows)
  with torch.no_grad():
    sampled = torch.distributions.Categorical(logits=logits).sample()
    corrupted = ids.clone()
    corrupted[torch.arange(len(ids))[:, None].expand_as(positions)[is_target], positions[is_target]] = (
      sampled[is_target])
  judged, is_replaced = torch_losses.judge(discriminator, corrupted, rows, rows["attention_mask"] > 0)
  rtd_loss = torch.nn.functional.binary_cross_entropy_with_logits(judged, is_replaced)
  return torch_losses.masked_loss(logits, rows), rtd_loss, judged, is_replaced


def make_optimizer(networks, config) -> torch.optim.Optimizer:
  """AdamW with the recipe's constants; biases and layer norms do not decay, as in ours."""
  named = {id(p): (name, p) for network in networks for name, p in network.named_parameters()}.values()
  def plain(name):
    return "bias" in name or "LayerNorm" in name

  c = config.optimizer
  return torch.optim.AdamW([
    {"params": [p for name, p in named if not plain(name)], "weight_decay": c.weight_decay_rate},
    {"params": [p for name, p in named if plain(name)], "weight_decay": 0.0}],
    betas=(c.beta1, c.beta2), eps=c.epsilon)


def main() -> None:
  """Prints a line for each window."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdir")
  parser.add_argument("--seed", type=int, default=0)
  options = parser.parse_args()
  torch.manual_seed(options.seed)
  config = config_lib.load(options.workdir)
  batch_at = inputs.open_data(config, options.workdir).batch_at
  ours = {row["step"]: row for row in metrics.read_rows(options.workdir) if row["split"] == "train"}
  _, rate_at = optim.make(config.optimizer, config.train.num_steps)
  networks = [network.train() for network in step_peer.make_networks(config)]
  optimizer = make_optimizer(networks, config)
  parameters = [p for group in optimizer.param_groups for p in group["params"]]
  window, judged, is_replaced = [], [], []
  for step in range(1, max(ours, default=0) + 1):
    mlm_loss, rtd_loss, logits, labels = losses(networks, torch_losses.tensors(batch_at(step - 1)))
    for group in optimizer.param_groups:
      group["lr"] = float(rate_at(step - 1))
    optimizer.zero_grad()
    (config.objective.mlm_weight * mlm_loss + config.objective.rtd_weight * rtd_loss).backward()
    if config.optimizer.clip_norm:
      torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.clip_norm)
    optimizer.step()
    window.append((float(mlm_loss), float(rtd_loss)))
    judged.append(logits.detach().numpy())
    is_replaced.append(labels.numpy())
    if step in ours:
      theirs = np.mean(window, axis=0)
      auc = roc_auc_score(np.concatenate(is_replaced), np.concatenate(judged))
      print(f"step {step:6d}  generator: ours {ours[step]['mlm/loss']:.4f}, peer {theirs[0]:.4f}  discriminator: ours "
            f"{ours[step]['rtd/loss']:.4f}, peer {theirs[1]:.4f} (AUC {auc:.3f})", flush=True)
      window, judged, is_replaced = [], [], []


if __name__ == "__main__":
  main()
