"""Accuracy of an ELECTRA as a masked LM on held-out text, with both networks together (ELECTRA Appendix E)."""

import functools

import jax
import jax.numpy as jnp
from absl import flags

from electra_jax import main as main_lib
from electra_jax import metrics
from electra_jax.data import pipeline, readers, shards
from electra_jax.data.shards import corpus
from electra_jax.errors import UserError
from electra_jax.exchange import formats
from electra_jax.inference import pretraining_heads
from electra_jax.objectives import electra_mlm

FLAGS = flags.FLAGS

USAGE = """Measures how often generator and discriminator together predict a masked token (ELECTRA Appendix E).

  python -m electra_jax.tools.appendix_e --workdir=runs/base --examples=256

Prints electra_mlm/accuracy next to the generator's own at the same positions, and the share of originals among the
candidates. It takes 100 passes of the discriminator for each masked position: a few hundred examples are enough."""


def evaluate(workdir: str, num_examples: int) -> dict[str, float]:
  """The metrics of `electra_mlm.accuracy` over the first held-out examples of a run's newest checkpoint.

  Raises:
    UserError: there is no run or no held-out example, or Appendix E does not apply to it.
  """
  if formats.is_published(workdir):
    raise UserError("Published weights have no held-out text", got=workdir, allowed="the workdir of a run",
                    fix="make one from them with --config.checkpoint.init_from (docs/results/trained-2e17.md)")
  run = pretraining_heads.load(workdir)
  config = run.config
  if not electra_mlm.applies(config):
    raise UserError("Appendix E does not apply to this run", got=f"objective.name={config.objective.name}",
                    allowed="a discriminator of all tokens with a learned generator that may draw the original",
                    fix="give the workdir of an ELECTRA")
  heldout = shards.open_shards(corpus.shards_directory(config.data, workdir), "heldout", config.data, run.tokenizer)
  if not len(heldout):
    raise UserError("Nothing is held out", got=f"data.heldout_share={config.data.heldout_share}",
                    allowed="a run with held-out examples", fix="train one with --config.data.heldout_share above 0")
  readers.start_import(config.data.reader)
  accuracy = jax.jit(functools.partial(
    electra_mlm.accuracy, network=run.network, temperature=config.objective.sampling_temperature,
    mask_rate=electra_mlm.corrupted_share(config)))
  batches = pipeline.eval_batches(heldout, config.data, run.tokenizer, seed=config.seed,
                                  batch_size=config.eval.batch_size, max_examples=num_examples)
  pairs = [accuracy(run.params, jax.tree.map(jnp.asarray, batch)) for batch in batches]
  return metrics.summarise(metrics.add_pairs(pairs))


def main(argv: list[str]) -> None:
  """Prints the metrics."""
  del argv
  if not FLAGS.workdir:
    raise UserError("--workdir is missing", got="nothing", allowed="the workdir of an ELECTRA", fix="see --help")
  main_lib.start_jax()
  for name, value in evaluate(FLAGS.workdir, FLAGS.examples).items():
    print(f"{name} {value:.4f}")


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.declare_key_flag("workdir")
  flags.DEFINE_integer("examples", 256, "Held-out examples.", lower_bound=1)
  main_lib.run(main, USAGE)
