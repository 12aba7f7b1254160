"""A small ELECTRA that learns any two megabytes of text in minutes on two CPU cores: the demo, and a first own run.

Both networks have to leave a plateau, the frequencies of the tokens, within four million tokens. What lets them:
sixteen tokens a row from a vocabulary of 1,024, so that each is frequent and its neighbours say much about it;
positions that start as sinusoids; initial weights of 1 / sqrt(width); a generator of one layer, half as wide, that
shares all embeddings; a quarter of the tokens masked (as ELECTRA-Large); a detection loss of weight 10, which leaves
the shared embeddings to the generator, too. With replacements drawn at a temperature of 1.5 the first are odd enough
to be told by themselves; at 1 the discriminator of film reviews ends at an AUC of 0.63 (docs/own_text.md).
"""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(hidden_size=64, embedding_size=64, num_hidden_layers=3, num_attention_heads=4,
                 intermediate_size=256, max_position_embeddings=64, initializer_range=1 / 8,
                 position_init="sinusoidal", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  c.generator.update(width_fraction=1 / 2, depth_fraction=1 / 3)
  c.objective.update(weight_tying="embeddings", rtd_weight=10.0, sampling_temperature=1.5)
  c.data.update(path="pydoc:", format="FULL-SENTENCES", sequence_length=16, heldout_share=0.03)
  c.data.tokenizer.update(vocab_size=1024, training_bytes=4_000_000)
  c.data.masking.rate = 0.25
  c.optimizer.update(name="adamw", learning_rate=3e-3, beta2=0.98)  # as RoBERTa
  c.train.update(batch_size=128, num_steps=2000, compute_dtype="float32", log_every_steps=50)
  c.optimizer.warmup_steps = c.train.get_ref("num_steps") // 40  # also of a run that the command line shortens
  c.eval.update(every_steps=500, max_examples=2048)
  c.checkpoint.every_steps = 500
  return variants.apply(c, argument)
