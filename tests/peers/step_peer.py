"""How fast is a training step beside PyTorch's on this machine? ELECTRA's joint step in both, float32 on a CPU.

  python -m tests.peers.step_peer [--hidden_size=128 --layers=4 --length=64 --batch=32 --windows=5]

The peer is transformers' ElectraForMaskedLM and ElectraForPreTraining with shared token embeddings, the head and the
sampling at the masked positions alone, dropout 0.1, AdamW. Both do the same arithmetic; windows alternate.
"""

import argparse
import statistics
import time

import torch
import transformers

from configs import small
from electra_jax import config as config_lib
from electra_jax.tools import bench

VOCAB_SIZE = 8192


def our_config(options):
  """The recipe of ELECTRA-Small at the sizes asked for, with AdamW."""
  config = small.get_config()
  config.model.update(hidden_size=options.hidden_size, embedding_size=options.hidden_size,
                      num_hidden_layers=options.layers, num_attention_heads=max(1, options.hidden_size // 32),
                      intermediate_size=4 * options.hidden_size)
  config.data.sequence_length = options.length
  config.data.tokenizer.vocab_size = VOCAB_SIZE
  config.train.update(batch_size=options.batch, compute_dtype="float32")
  config.optimizer.name = "adamw"
  return config_lib.resolve(config)


class Peer:
  """The same networks in PyTorch."""

  def __init__(self, config):
    def encoder(sizes):
      return transformers.ElectraConfig(
        vocab_size=config.model.vocab_size, embedding_size=config.model.embedding_size, hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers, num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size, attn_implementation="sdpa")

    self.generator = transformers.ElectraForMaskedLM(encoder(config.generator))
    self.discriminator = transformers.ElectraForPreTraining(encoder(config.model))
    table = self.discriminator.electra.embeddings.word_embeddings.weight
    self.generator.electra.embeddings.word_embeddings.weight = table
    self.generator.generator_lm_head.weight = table
    parameters = {id(p): p for network in (self.generator, self.discriminator) for p in network.parameters()}
    self.optimizer = torch.optim.AdamW(parameters.values(), lr=1e-4)
    rows = bench.synthetic_batch(config)
    self.ids, self.masked, self.positions, self.targets = (
      torch.from_numpy(rows[name]).long() for name in ("input_ids", "masked_input_ids", "masked_positions",
                                                       "masked_ids"))

  def step(self):
    """One update."""
    hidden = self.generator.electra(input_ids=self.masked).last_hidden_state
    hidden = hidden.gather(1, self.positions[..., None].expand(-1, -1, hidden.shape[-1]))
    logits = self.generator.generator_lm_head(self.generator.generator_predictions(hidden))
    mlm_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())
    with torch.no_grad():
      sampled = torch.distributions.Categorical(logits=logits).sample()
    corrupted = self.ids.scatter(1, self.positions, sampled)
    judged = self.discriminator(input_ids=corrupted).logits
    rtd_loss = torch.nn.functional.binary_cross_entropy_with_logits(judged, (corrupted != self.ids).float())
    (mlm_loss + 50 * rtd_loss).backward()
    torch.nn.utils.clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], 1.0)
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)


def time_peer(peer: Peer, steps: int) -> float:
  """Seconds a step."""
  started = time.perf_counter()
  for _ in range(steps):
    peer.step()
  return (time.perf_counter() - started) / steps


def main() -> None:
  """Prints both rates and their ratio."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  for name, value in (("hidden_size", 128), ("layers", 4), ("length", 64), ("batch", 32), ("windows", 5),
                      ("window_steps", 5)):
    parser.add_argument(f"--{name}", type=int, default=value)
  options = parser.parse_args()
  config = our_config(options)
  tokens = options.batch * options.length
  peer = Peer(config)
  time_peer(peer, 2)
  theirs, ours = [], []
  for _ in range(2):  # before and after ours: a machine that warms up or is shared shows
    theirs += [time_peer(peer, options.window_steps) for _ in range(options.windows)]
    if not ours:
      figures = bench.time_step(config, windows=options.windows, window_steps=options.window_steps)
      ours.append(figures["step_ms"] / 1000)
  rate, peer_rate = tokens / ours[0], tokens / statistics.median(theirs)
  print(f"ours {rate:,.0f} tokens/s (compiled in {figures['compile_seconds']} s), peer {peer_rate:,.0f} tokens/s "
        f"({torch.get_num_threads()} threads, windows {tokens / max(theirs):,.0f} to {tokens / min(theirs):,.0f}): "
        f"{rate / peer_rate:.2f} times")


if __name__ == "__main__":
  main()
