"""The demo: an ELECTRA that learns the English of Python's own documentation in minutes on two CPU cores.

Small enough to leave the plateau at the unigram entropy within two million tokens: short rows make it see that
neighbours matter (rows of 32 or 64 tokens took several times as many).
"""

from configs import common


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(hidden_size=64, embedding_size=64, num_hidden_layers=2, num_attention_heads=1,
                 intermediate_size=256, max_position_embeddings=64, initializer_range=0.1,  # 1 / sqrt(64), not 0.02
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  c.generator.width_fraction = 1 / 2
  c.data.update(path="pydoc:", sequence_length=16, heldout_share=0.03)
  c.data.tokenizer.update(vocab_size=2048, training_bytes=4_000_000)
  c.optimizer.update(name="adamw", learning_rate=3e-3, warmup_steps=100)
  c.train.update(batch_size=128, num_steps=2200, compute_dtype="float32", log_every_steps=50)
  c.eval.update(every_steps=550, max_examples=2048)
  c.checkpoint.every_steps = 550
  return common.variant(c, argument)
