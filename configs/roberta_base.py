"""RoBERTa-Base: RoBERTa Table 9 (125 M parameters), FULL-SENTENCES without NSP, dynamic masks, byte-level BPE.

Differs from fairseq, which decays biases and layer norms too, draws initial weights from a normal distribution that is
not truncated, and ends every line of the text with a separator: here only documents are separated (section 4.2: "an
extra separator token between documents").
"""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(common.SIZES["base"])
  c.model.update(max_position_embeddings=514, position_offset=2, type_vocab_size=1, layer_norm_eps=1e-5)
  c.objective.name = "mlm"
  c.data.path = common.WIKIPEDIA
  c.data.format = "FULL-SENTENCES"  # section 4.2
  c.data.sequence_length = 512
  c.data.tokenizer.update(kind="byte_bpe", vocab_size=50265, lowercase=False)  # section 4.4
  c.data.masking.update(common.BERT_MASKING)
  c.optimizer.update(name="adamw", learning_rate=6e-4, warmup_steps=24_000, beta2=0.98, clip_norm=0.0)
  c.train.batch_size = 8192
  c.train.num_steps = 500_000
  return variants.apply(c, argument)
