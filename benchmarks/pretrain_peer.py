"""Does PyTorch learn the same from the same batches? ELECTRA or BERT pre-trained by transformers on a run's own shards.

  python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny
  python -m benchmarks.pretrain_peer runs/tiny
  python -m benchmarks.pretrain_peer runs/tiny --save=runs/peer      then, with GLUE's folders in DATA:
  python -m electra_jax.tools.experiments run --init_from=runs/peer --glue=DATA --out=runs/peer_glue

Reads the config, the tokenizer and the batches of a workdir, builds the networks anew and trains them with torch's
AdamW: the same rows, masks, rates and weights of the losses; other initial draws, samples and dropout. It prints our
losses next to its own, means over the same updates. On a CPU in float32, so for small models only; on a GPU in the
run's precision, compiled. With --save the same command resumes after a kill.
"""

import argparse
import collections
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks import step_peer, torch_losses
from electra_jax import config as config_lib
from electra_jax import metrics, optim
from electra_jax.data.shards import corpus
from electra_jax.training import inputs


def mlm_losses(networks, rows: dict[str, torch.Tensor]):
  """({name: loss}, None) of BERT."""
  logits = torch_losses.masked_logits(networks[0], rows["masked_input_ids"], rows)
  return {"mlm/loss": torch_losses.masked_loss(logits, rows)}, None


def rtd_losses(networks, rows: dict[str, torch.Tensor]):
  """({name: loss}, the discriminator's logits, its labels, and which tokens are real) of ELECTRA."""
  generator, discriminator = networks
  ids, positions, is_target = rows["input_ids"], rows["masked_positions"], rows["masked_weights"] > 0
  logits = torch_losses.masked_logits(generator, rows["masked_input_ids"], rows)
  with torch.no_grad():
    sampled = torch.distributions.Categorical(logits=logits.float()).sample()
    # A slot without a target points at position 0, and must not overwrite what another slot puts there.
    places = torch.where(is_target, positions, ids.shape[1])
    wider = torch.nn.functional.pad(ids, (0, 1))
    corrupted = wider.scatter(1, places, sampled)[:, :-1]
  answers = *torch_losses.judge(discriminator, corrupted, rows), rows["attention_mask"] > 0
  return {"mlm/loss": torch_losses.masked_loss(logits, rows), "rtd/loss": torch_losses.judged_loss(*answers)}, answers


LOSSES = {"mlm": mlm_losses, "rtd": rtd_losses}


def make_optimizer(networks, config, device: str) -> torch.optim.Optimizer:
  """AdamW with the recipe's constants; biases and layer norms do not decay, as in ours."""
  named = {id(p): (name, p) for network in networks for name, p in network.named_parameters()}.values()
  def plain(name):
    return "bias" in name or "LayerNorm" in name

  c = config.optimizer
  return torch.optim.AdamW([
    {"params": [p for name, p in named if not plain(name)], "weight_decay": c.weight_decay_rate},
    {"params": [p for name, p in named if plain(name)], "weight_decay": 0.0}],
    betas=(c.beta1, c.beta2), eps=c.epsilon, fused=device == "cuda")


class Trained:
  """The networks of a run's recipe, trained by PyTorch on the run's batches."""

  def __init__(self, config, workdir: str, device: str):
    self.config, self.device, self.half = config, device, config.train.compute_dtype == "bfloat16"
    self.batch_at = inputs.open_data(config, workdir).batch_at
    self.networks = [network.to(device).train() for network in step_peer.make_networks(config)]
    self.optimizer = make_optimizer(self.networks, config, device)
    self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
    _, self.rate_at = optim.make(config.optimizer, config.train.num_steps)
    self.losses = LOSSES[config.objective.name]
    if device == "cuda":
      self.losses = torch.compile(self.losses)
    self.weights = {"mlm/loss": config.objective.mlm_weight if len(self.networks) > 1 else 1.0,
                    "rtd/loss": config.objective.rtd_weight}

  def rows(self, step: int) -> dict[str, torch.Tensor]:
    """The batch of a step, on the device."""
    return {name: value.to(self.device) for name, value in torch_losses.tensors(self.batch_at(step)).items()}

  def update(self, rows: dict[str, torch.Tensor], rate: float):
    """One update; what its objective's losses are, and its answers."""
    with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.half and self.device == "cuda"):
      found, answers = self.losses(self.networks, rows)
    for group in self.optimizer.param_groups:
      group["lr"] = rate
    self.optimizer.zero_grad()
    sum(self.weights[name] * loss for name, loss in found.items()).backward()
    if self.config.optimizer.clip_norm:
      torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.clip_norm)
    self.optimizer.step()
    return {name: loss.detach() for name, loss in found.items()}, answers

  def train(self, start: int, num_steps: int):
    """Yields (step, losses, answers) after each update; the next batch is drawn meanwhile."""
    with ThreadPoolExecutor(1) as pool:
      following = pool.submit(self.rows, start)
      for step in range(start, num_steps):
        rows, following = following.result(), pool.submit(self.rows, min(step + 1, num_steps - 1))
        yield step + 1, *self.update(rows, float(self.rate_at(step)))

  def parts(self) -> list:
    """What has a state_dict."""
    return [*self.networks, self.optimizer]

  def keep(self, step: int, path: str) -> None:
    """Writes what training goes on from."""
    state = {"step": step, "parts": [part.state_dict() for part in self.parts()],
             "random": (torch.get_rng_state(), torch.cuda.get_rng_state_all())}
    torch.save(state, f"{path}.partial")
    os.replace(f"{path}.partial", path)

  def restore(self, path: str) -> int:
    """The step that it goes on from; 0 where nothing is kept."""
    if not os.path.exists(path):
      return 0
    state = torch.load(path, map_location="cpu")
    for part, values in zip(self.parts(), state["parts"], strict=True):
      part.load_state_dict(values)
    torch.set_rng_state(state["random"][0])
    torch.cuda.set_rng_state_all(state["random"][1])
    return state["step"]


def line(step: int, ours: list[dict], theirs: list[dict[str, torch.Tensor]], answers) -> str:
  """Means of both sides since the last line, and the peer's AUC over the latest answers."""
  parts = []
  for name in theirs[0]:
    mine, peer = np.mean([row[name] for row in ours]), torch.stack([losses[name] for losses in theirs]).mean()
    parts.append(f"{name}: ours {mine:.4f}, peer {float(peer):.4f}")
  if answers:
    judged, labels, is_real = (torch.cat(values).cpu().numpy() for values in zip(*answers, strict=True))
    parts.append(f"(AUC {roc_auc_score(labels[is_real], judged[is_real]):.3f})")
  return "  ".join([f"step {step:7,}", *parts])


def save(network: torch.nn.Module, workdir: str, folder: str) -> None:
  """The kept network as transformers stores it, with the run's vocabulary: a task.init_from."""
  network.save_pretrained(folder)
  shutil.copytree(os.path.join(workdir, corpus.TOKENIZER_FOLDER), folder, dirs_exist_ok=True)


def main() -> None:
  """Trains, prints a line for each window."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdir")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--lines", type=int, default=100, help="at most so many; each is a mean of windows of the log")
  parser.add_argument("--save", default="", metavar="FOLDER",
                      help="for the trained discriminator, or BERT; until then for what a restart goes on from")
  options = parser.parse_args()
  jax.config.update("jax_platforms", "cpu")  # the device is PyTorch's
  torch.manual_seed(options.seed)
  config = config_lib.load(options.workdir)
  if config.objective.name not in LOSSES:
    raise SystemExit(f"The peer trains {', '.join(LOSSES)}, not {config.objective.name}.")
  trained = Trained(config, options.workdir, "cuda" if torch.cuda.is_available() else "cpu")
  rows = {row["step"]: row for row in metrics.read_rows(options.workdir) if row["split"] == "train"}
  logged = sorted(rows)
  ends = logged[::-1][::max(1, -(-len(logged) // options.lines))][::-1]
  state = os.path.join(options.save, "state.pt")
  if options.save:
    os.makedirs(options.save, exist_ok=True)
  start = trained.restore(state) if options.save else 0
  ours, theirs, answers = [], [], collections.deque(maxlen=50)
  for step, losses, answer in trained.train(start, max(logged, default=0)):
    theirs.append(losses)
    if answer:
      answers.append(tuple(value.detach() for value in answer))
    if step in rows:
      ours.append(rows[step])
    if step in ends:
      print(line(step, ours, theirs, answers), flush=True)
      ours, theirs = [], []
      answers.clear()
      if options.save and (ends.index(step) + 1) % 10 == 0:
        trained.keep(step, state)
  if options.save:
    save(trained.networks[-1], options.workdir, options.save)
    print(options.save)


if __name__ == "__main__":
  main()
