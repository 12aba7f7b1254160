"""The demo: an ELECTRA that learns the English of Python's own documentation in minutes on two CPU cores.

Small enough for both losses to leave their plateaus within four million tokens. Short rows make the model see that
neighbours matter (rows of 32 or 64 tokens took several times as many); four narrow heads let the discriminator
compare a token with several neighbours; and the generator is a single narrow layer, because a discriminator learns
nothing from a generator that knows as much as itself.
"""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(hidden_size=64, embedding_size=64, num_hidden_layers=3, num_attention_heads=4,
                 intermediate_size=256, max_position_embeddings=64, initializer_range=0.07,  # 0.02 * sqrt(768 / 64)
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  c.generator.update(width_fraction=1 / 4, depth_fraction=1 / 3)
  c.data.update(path="pydoc:", format="FULL-SENTENCES", sequence_length=16, heldout_share=0.03)
  c.data.tokenizer.update(vocab_size=2048, training_bytes=4_000_000)
  c.optimizer.update(name="adamw", learning_rate=3e-3, beta2=0.98)  # as RoBERTa
  c.train.update(batch_size=128, num_steps=4000, compute_dtype="float32", log_every_steps=50)
  c.optimizer.warmup_steps = c.train.get_ref("num_steps") // 40  # also of a run that the command line shortens
  c.eval.update(every_steps=500, max_examples=2048)
  c.checkpoint.every_steps = 500
  return variants.apply(c, argument)
