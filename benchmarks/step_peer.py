"""How fast is a training step next to PyTorch's on this machine? The same networks, rows and dropout in both.

  python -m benchmarks.step_peer                                                  a small ELECTRA, minutes on any CPU
  python -m benchmarks.step_peer --recipe=configs/base.py --set=train.batch_size=64          on a GPU
  python -m benchmarks.step_peer --recipe=configs/bert_large.py --set=train.batch_size=32

The peer is transformers' ELECTRA (a generator and a discriminator with shared token embeddings) or BERT, with SDPA and
AdamW; on a GPU in bfloat16 autocast, compiled, with fused AdamW. Its head and its sampling work at the masked positions
alone, as an expert would write it; --whole has them at all positions, as the classes come. It neither clips gradients
nor draws masks: what is left out is in its favour. Ours is `electra_jax.tools.bench step` in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import transformers

from electra_jax import config as config_lib
from electra_jax import recipes
from electra_jax.tools import bench

# Without --recipe: ELECTRA-Small's recipe, small enough for two cores.
ON_CPU = ("model.hidden_size=128", "model.embedding_size=128", "model.num_hidden_layers=4",
          "model.num_attention_heads=4", "model.intermediate_size=512", "data.sequence_length=64",
          "data.tokenizer.vocab_size=8192", "train.batch_size=32", "train.compute_dtype=float32",
          "optimizer.name=adamw")


def make_networks(config) -> list[torch.nn.Module]:
  """[BERT] or [ELECTRA's generator, discriminator], new, with the recipe's sizes, dropout, widths and sharing."""
  def sizes(of):
    same = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "max_position_embeddings")
    own = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return ({name: config.model[name] for name in same} | {name: of[name] for name in own}
            | {"vocab_size": config.model.vocab_size, "attn_implementation": "sdpa"})

  width = config.model.embedding_size
  if config.objective.name == "mlm" and width != config.model.hidden_size:  # transformers' BERT has no projection
    network = transformers.ElectraForMaskedLM(transformers.ElectraConfig(embedding_size=width, **sizes(config.model)))
    network.generator_lm_head.weight = network.electra.embeddings.word_embeddings.weight
    return [network]
  if config.objective.name == "mlm":
    return [transformers.BertForMaskedLM(transformers.BertConfig(**sizes(config.model)))]
  if config.objective.name != "rtd" or config.objective.weight_tying not in ("token_embeddings", "embeddings"):
    raise SystemExit("The peer has BERT (mlm) and ELECTRA (rtd) with shared token tables or embeddings, not "
                     f"{config.objective.name} with weight_tying={config.objective.weight_tying}.")
  generator = transformers.ElectraForMaskedLM(
    transformers.ElectraConfig(embedding_size=width, **sizes(config.generator)))
  discriminator = transformers.ElectraForPreTraining(
    transformers.ElectraConfig(embedding_size=width, **sizes(config.model)))
  share(generator, discriminator, config.objective.weight_tying)
  return [generator, discriminator]


def share(generator, kept, weight_tying: str) -> None:
  """Makes the tables that two networks share one parameter each; a token table also gives its network's logits."""
  (encoder, _), theirs = parts_of(generator), kept.base_model
  if weight_tying == "embeddings":  # positions, segments and their layer norm too
    encoder.embeddings = theirs.embeddings
  elif weight_tying == "token_embeddings":
    encoder.embeddings.word_embeddings.weight = theirs.embeddings.word_embeddings.weight
  generator.generator_lm_head.weight = encoder.embeddings.word_embeddings.weight


def parts_of(network) -> tuple:
  """(encoder, head: hidden states -> logits) of a masked LM."""
  if isinstance(network, transformers.ElectraForMaskedLM):
    return network.electra, lambda hidden: network.generator_lm_head(network.generator_predictions(hidden))
  if isinstance(network, transformers.RobertaForMaskedLM):
    return network.roberta, network.lm_head
  return network.bert, network.cls.predictions  # BertForMaskedLM, BertForPreTraining


class Peer:
  """The networks of a recipe in PyTorch, and their training step."""

  def __init__(self, config, device: str, whole: bool = False):
    self.device, self.whole = device, whole
    self.networks = [network.to(device).train() for network in make_networks(config)]
    self.loss = self.mlm_loss if config.objective.name == "mlm" else self.rtd_loss
    parameters = {id(p): p for network in self.networks for p in network.parameters()}
    self.optimizer = torch.optim.AdamW(parameters.values(), lr=1e-4, fused=device == "cuda")
    rows = bench.synthetic_batch(config)
    self.ids, self.masked, self.positions, self.targets = (
      torch.from_numpy(rows[name]).long().to(device)
      for name in ("input_ids", "masked_input_ids", "masked_positions", "masked_ids"))
    self.half = config.train.compute_dtype == "bfloat16"
    if device == "cuda":
      self.loss = torch.compile(self.loss)

  def predict(self, encode, head):
    """(logits, targets): at the masked positions [rows * slots, vocabulary], or at all with -100 for the others."""
    hidden = encode(input_ids=self.masked).last_hidden_state
    if self.whole:
      targets = torch.full_like(self.ids, -100).scatter(1, self.positions, self.targets)
      return head(hidden).flatten(0, 1), targets.flatten()
    hidden = hidden.gather(1, self.positions[..., None].expand(-1, -1, hidden.shape[-1]))
    return head(hidden).flatten(0, 1), self.targets.flatten()

  def mlm_loss(self):
    """Of BERT."""
    logits, targets = self.predict(*parts_of(self.networks[0]))
    return torch.nn.functional.cross_entropy(logits.float(), targets)

  def rtd_loss(self):
    """Of ELECTRA: generator, sampling, discriminator."""
    generator, discriminator = self.networks
    logits, targets = self.predict(*parts_of(generator))
    logits = logits.float()
    mlm_loss = torch.nn.functional.cross_entropy(logits, targets)
    with torch.no_grad():
      noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
      sampled = (logits + noise).argmax(-1).view(len(self.ids), -1)
      if self.whole:
        sampled = sampled.gather(1, self.positions)
      corrupted = self.ids.scatter(1, self.positions, sampled)
    judged = discriminator(input_ids=corrupted).logits.float()
    rtd_loss = torch.nn.functional.binary_cross_entropy_with_logits(judged, (corrupted != self.ids).float())
    return mlm_loss + 50 * rtd_loss

  def step(self) -> None:
    """One update."""
    with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.half):
      loss = self.loss()
    loss.backward()
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)

  def time(self, steps: int) -> float:
    """Seconds a step."""
    wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    for _ in range(steps):
      self.step()
    wait()
    return (time.perf_counter() - started) / steps


def time_peer(config, device: str, *, windows: int, window_steps: int, whole: bool = False) -> dict:
  """tokens_per_second (the median of the windows), slowest, fastest, and what ran."""
  peer = Peer(config, device, whole)
  started = time.perf_counter()
  peer.time(5)  # compiles
  warm_up = time.perf_counter() - started
  seconds = [peer.time(window_steps) for _ in range(windows)]
  tokens = peer.ids.numel()
  return {"tokens_per_second": round(tokens / statistics.median(seconds)), "slowest": round(tokens / max(seconds)),
          "fastest": round(tokens / min(seconds)), "step_ms": round(1000 * statistics.median(seconds), 3),
          "kind": "stock" if whole else "gathered", "warm_up_seconds": round(warm_up, 1),
          "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else None,
          "device": torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads",
          "torch": torch.__version__, "transformers": transformers.__version__}


def time_ours(recipe: str, settings, *, windows: int, window_steps: int) -> dict:
  """What `bench step` prints, from a process of its own: two libraries share a GPU badly."""
  command = [sys.executable, "-m", "electra_jax.tools.bench", "step", f"--config={recipe}", f"--windows={windows}",
             f"--window_steps={window_steps}", *(f"--config.{setting}" for setting in settings)]
  environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
  return json.loads(said.strip().splitlines()[-1])


def main() -> None:
  """Times the peer, ours, and the peer again: a machine that warms up or is shared shows."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--recipe", default="", help="as bench's --config")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe; repeatable")
  parser.add_argument("--windows", type=int, default=5)
  parser.add_argument("--window_steps", type=int, default=5)
  parser.add_argument("--whole", action="store_true", help="the peer's head at all positions")
  options = parser.parse_args()
  device = "cuda" if torch.cuda.is_available() else "cpu"
  recipe = options.recipe or "configs/small.py"
  settings = [*(() if options.recipe else ON_CPU), *options.set]
  _, given = recipes.load(recipe)
  recipes.override(given, settings)
  config = config_lib.resolve(given)
  how = {"windows": options.windows, "window_steps": options.window_steps}
  first = time_peer(config, device, whole=options.whole, **how)
  if device == "cuda":
    torch.cuda.empty_cache()
  ours = time_ours(recipe, settings, **how)
  again = time_peer(config, device, whole=options.whole, **how)
  rate, peer_rate = ours["tokens_per_second"], max(first["tokens_per_second"], again["tokens_per_second"])
  print(json.dumps({"ours": ours, "peer": first, "peer_again": again}))
  print(f"ours {rate:,} tokens/s, peer {peer_rate:,} ({first['slowest']:,} to {again['fastest']:,}): "
        f"{rate / peer_rate:.2f} times, on {first['device']}")


if __name__ == "__main__":
  main()
