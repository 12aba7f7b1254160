"""What happens to a text until it has become a loss? Each array on the way, printed with its meaning.

Run it with `python -m docs.tour`; it takes seconds. The cells (# %%) also run one by one in an editor that knows them.
Sizes are the smallest at which every array fits on a screen; the functions are those that a real run calls.
"""

# %% A text, and a configuration: the demo's recipe, smaller still.
import itertools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from configs import tiny
from electra_jax import config as config_lib
from electra_jax import objectives
from electra_jax.data import masking, pipeline, shards, tokenizers
from electra_jax.data.shards import corpus
from electra_jax.data.sources import documents
from electra_jax.models.bert import make_transformer_config
from electra_jax.objectives import generators, losses
from electra_jax.objectives.base import Parts

TEXT = """\
The cat sat on the mat and looked at the rain.
Rain fell on the roof all day, and all night.

A dog came in from the rain, wet and glad.
The cat left the mat to the dog.
"""


def show(name: str, value, meaning: str) -> None:
  """Prints an array with its shape and what it is for."""
  value = np.asarray(value)
  print(f"\n{name}  {value.dtype} {list(value.shape)}\n  {meaning}")
  if value.size <= 256:
    print(np.array2string(value, precision=2, suppress_small=True, max_line_width=110))


folder = tempfile.TemporaryDirectory()
workdir = pathlib.Path(folder.name)
# Ten times over: a tokenizer learns only what it has seen more than once.
(workdir / "text.txt").write_text("\n".join([TEXT] * 10), encoding="utf-8")

given = tiny.get_config()
given.model.update(vocab_size=128, hidden_size=16, embedding_size=16, num_attention_heads=2, intermediate_size=32,
                   num_hidden_layers=1)
given.generator.depth_fraction = 1.0
given.data.update(path=str(workdir / "text.txt"), format="ELECTRA", sequence_length=24, heldout_share=0.0,
                  num_workers=1)
given.data.tokenizer.update(kind="wordpiece", vocab_size=120)
given.train.batch_size = 2
config = config_lib.resolve(given)

# %% Documents: paragraphs between blank lines.
for number, document in enumerate(itertools.islice(documents.read_corpus(config.data), 2)):
  print(f"document {number}: {document}")

# %% Tokenizer and shards: a run makes what its workdir lacks.
corpus.make_missing(config.data, str(workdir), config.seed)
tokenizer = tokenizers.load_tokenizer(str(workdir / "tokenizer"), config.data.tokenizer)
examples = shards.open_shards(str(workdir / "shards"), "train", config.data, tokenizer)
print(f"{tokenizer.vocab_size} tokens, {len(examples)} examples of {examples.sequence_length} positions")
special_ids = sorted(tokenizer.special_ids)
print("never masked:", dict(zip(special_ids, tokenizer.tokens(special_ids))))

# %% A batch: a pure function of the step.
batch_at = pipeline.make_batch_at(examples, config.data, tokenizer, batch_size=config.train.batch_size,
                                  seed=config.seed)
batch = jax.tree.map(jnp.asarray, batch_at(0))  # a run splits them over its devices: sharding.put_batch
print("row 0 reads:", " ".join(tokenizer.tokens(batch["input_ids"][0].tolist())))
show("input_ids", batch["input_ids"], "[batch, length] the original tokens, padded at the end")
show("token_type_ids", batch["token_type_ids"], "[batch, length] 0 = segment A and padding, 1 = segment B")
show("attention_mask", batch["attention_mask"].astype(int), "[batch, length] 1 = a real token, 0 = padding")

# %% Its masks: drawn with the batch, from (seed, epoch, example, position) alone.
show("masked_positions", batch["masked_positions"], "[batch, predictions] the chosen positions; unused slots are 0")
show("masked_ids", batch["masked_ids"], "[batch, predictions] what stood there: the generator's targets")
show("masked_weights", batch["masked_weights"], "[batch, predictions] 1 = a target, 0 = an unused slot")
show("masked_input_ids", batch["masked_input_ids"], "[batch, length] what the generator reads: [MASK] at those places")
print("row 0 masked:", " ".join(tokenizer.tokens(batch["masked_input_ids"][0].tolist())))
never_masked = masking.protected_ids(tokenizer, config.data.masking.never_mask)
assert not np.isin(batch["masked_ids"][batch["masked_weights"] > 0], never_masked).any()

# %% Two networks with random parameters. The names are those of checkpoints.
transformer = make_transformer_config(config.model, num_tokens=tokenizer.vocab_size, dtype="float32")
parts = Parts(transformer, config.generator, config.objective, config.train.num_steps)
objective = objectives.make(*parts)
params = jax.jit(objective.init)(jax.random.key(config.seed), batch)
for path, leaf in jax.tree_util.tree_leaves_with_path(params):
  print(f"  {jax.tree_util.keystr(path, simple=True, separator='/'):58} {list(leaf.shape)}")

# %% The generator predicts at the masked positions only.
rng = jax.random.key(1)
dropout_rng, sample_rng, *_ = jax.random.split(rng, 4)  # as the objective does
model = generators.make_model(parts)
generate = generators.make(model, parts)


@jax.jit
def forward(params, batch):
  """(generator logits, sum of its losses, what is made of its draws, discriminator logits), without dropout."""
  logits = model.apply({"params": params}, batch, False, method="generator_logits")
  mlm_sum, _, corruption = generate(params, batch, dropout_rng, sample_rng, False)
  judgement = model.apply({"params": params}, batch, corruption.ids, False, method="discriminator_logits")
  return logits, mlm_sum, corruption, judgement


generator_logits, mlm_sum, corruption, rtd_logits = forward(params, batch)
show("generator_logits", generator_logits, "[batch, predictions, vocab] a score for each token; the table has "
     f"{config.model.vocab_size} rows, those beyond the {tokenizer.vocab_size} tokens can never be drawn")

# %% Draws of the generator take the places of the masks.
show("sampled_ids", corruption.sampled_ids, "[batch, predictions] one draw from each softmax; it carries no gradient")
show("corrupted_ids", corruption.ids, "[batch, length] what the discriminator reads: draws where [MASK] stood")
show("is_replaced", corruption.is_replaced.astype(int), "[batch, length] the discriminator's targets: 1 where the draw "
     "differs from the original. A draw that hits the original counts as original")
print("row 0 corrupted:", " ".join(tokenizer.tokens(corruption.ids[0].tolist())))

# %% The discriminator judges every token.
show("discriminator_logits", rtd_logits, "[batch, length] above 0: it holds the token for replaced")

# %% One loss: sums, each divided by the number of its targets in the whole global batch.
weights = batch["attention_mask"].astype(jnp.float32)
rtd_sum = losses.binary_cross_entropy(rtd_logits, corruption.is_replaced, weights)
num_targets = objective.count_targets(batch)
print(f"\nL_MLM  {mlm_sum:.3f} / {num_targets['mlm']:.0f} masked tokens = {mlm_sum / num_targets['mlm']:.3f} nats "
      f"(ln {tokenizer.vocab_size} = {np.log(tokenizer.vocab_size):.3f}: knows nothing yet)")
print(f"L_Disc {rtd_sum:.3f} / {num_targets['rtd']:.0f} real tokens = {rtd_sum / num_targets['rtd']:.3f} nats "
      f"(ln 2 = {np.log(2):.3f}: knows nothing yet)")
loss = (config.objective.mlm_weight * mlm_sum / num_targets["mlm"] +
        config.objective.rtd_weight * rtd_sum / num_targets["rtd"])
print(f"loss   {config.objective.mlm_weight:g} L_MLM + {config.objective.rtd_weight:g} L_Disc = {loss:.3f}")

# %% The same from the objective itself, as the training loop asks for it.
same, metrics = jax.jit(objective.phases[0].loss, static_argnums=3)(params, batch, rng, False, num_targets)
print(f"       the objective says {same:.3f}, with the metrics {', '.join(metrics)}")
assert np.isclose(loss, same, rtol=1e-5)

folder.cleanup()
