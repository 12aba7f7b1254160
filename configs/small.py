"""ELECTRA-Small: ELECTRA Table 4, column "Small" (14 M parameters; 1 M steps, 4 days on one V100 in the paper).

On a budget of minutes (1e17 FLOPs) this generator and sharing of embeddings were 6.5 GLUE points behind BERT-Small,
where a generator of a quarter and all embeddings shared were level with it (docs/results/notebook.md).
"""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(common.SIZES["small"])
  c.generator.width_fraction = 1 / 2
  c.data.path = common.WIKIPEDIA
  c.data.sequence_length = 128  # section 3.3: shortened from 512
  c.data.tokenizer.kind = "wordpiece"
  c.optimizer.learning_rate = 5e-4
  c.optimizer.warmup_steps = 10_000
  c.train.batch_size = 128
  c.train.num_steps = 1_000_000
  c.train.steps_per_dispatch = 10  # its kernels are done sooner than a host can launch the next ones
  return variants.apply(c, argument)
