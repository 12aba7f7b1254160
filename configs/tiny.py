"""The demo: an ELECTRA that learns the English of Python's own documentation in minutes on two CPU cores."""

from configs import common


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(hidden_size=128, embedding_size=128, num_hidden_layers=4, num_attention_heads=2,
                 intermediate_size=512, max_position_embeddings=128,
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  c.generator.width_fraction = 1 / 2
  c.data.update(path="pydoc:", sequence_length=64, heldout_share=0.03)
  c.data.tokenizer.update(vocab_size=2048, training_bytes=4_000_000)
  c.optimizer.update(name="adamw", learning_rate=1e-3, warmup_steps=100)
  c.train.update(batch_size=32, num_steps=1500, compute_dtype="float32", log_every_steps=25)
  c.eval.update(every_steps=250, max_examples=1024)
  c.checkpoint.every_steps = 250
  return common.variant(c, argument)
