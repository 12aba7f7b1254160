"""Recipes of `launch/reproduce.sh`: the papers' claims, repeated with ELECTRA-Small's sizes on a budget of minutes.

`--config=configs/evidence.py:electra_small`, or :electra_small,fast for a further variant. A row is (the paper's row,
the recipe or row that it changes, {key: value}).

Differs from the paper in `electra_small`: the warm-up is a tenth of the run, which has tens of thousands of steps and
not a million. Initial weights are as wide for 256 units as 0.02 is for 768: both networks leave their plateaus
thousands of updates earlier. As by the released code's defaults, the generator has a quarter of the width and all
embeddings are shared; with half of it and the token table alone, which is the preprint's text, the discriminator learnt
no position more exactly than to a few tokens (docs/results/small-vs-bert.md). The optimizer is AdamW, with bias
correction: in runs this short the discriminator learnt less with LAMB, which the preprint names, at every learning rate
that was tried (docs/results/lamb-vs-adamw.md). Masks and GELU are the preprint's (`configs/small.py:released` has the
released code's).
"""

from configs import common
from electra_jax import recipes

ONE_SHAPE_A_CALL = {"train.steps_per_dispatch": 1}  # batches of equally many tokens differ in shape

ROWS = {
  "electra_small": (
    "ELECTRA-Small on a budget of minutes: sizes, dropout, masks, λ, batch and learning rate of configs/small.py "
    "(ELECTRA Table 4). BERT and the other rows of each table inherit its data, batch, rate and initial weights.",
    "small", {
      "model.initializer_range": 0.035,  # 0.02 * sqrt(768 / 256)
      "generator.width_fraction": 1 / 4, "objective.weight_tying": "embeddings",
      "optimizer.name": "adamw", "optimizer.learning_rate": 5e-4,
      "optimizer.warmup_steps": None,  # a tenth of the run
      "train.batch_size": 128,
      "train.num_steps": 35_000,  # about 5e16 FLOPs; `experiments` computes the steps from its budget
      "train.log_every_steps": 200,
      "data.heldout_share": 0.005,  # 400 thousand of 70 million tokens are enough for an evaluation
      "eval.every_steps": 2_000, "eval.max_examples": 4096, "checkpoint.every_steps": 4_000}),
  "bert_small": ("BERT-Small next to electra_small: the same data, batch, optimizer and FLOPs; MLM with 80/10/10 masks "
                 "(ELECTRA section 3.5), no NSP.", "electra_small",
                 {"objective.name": "mlm", "data.masking.policy": "bert"}),

  "all_tokens_mlm": ('ELECTRA Table 3, row "All-Tokens MLM": the encoder predicts every token of the corrupted text, '
                     "or copies it.", "electra_small", {"objective.name": "all_tokens_mlm"}),
  "replace_mlm": ('ELECTRA Table 3, row "Replace MLM": BERT whose masks are filled with samples of a generator.',
                  "electra_small", {"objective.name": "replace_mlm"}),
  "electra_15": ('ELECTRA Table 3, row "ELECTRA 15%": the discriminator learns from the masked positions alone.',
                 "electra_small", {"objective.name": "electra_15"}),
  "generator_half": ("ELECTRA Figure 3 left: a generator of half the discriminator's width; electra_small has a "
                     "quarter.", "electra_small", {"generator.width_fraction": 1 / 2}),
  "generator_full": ("ELECTRA Figure 3 left: a generator as wide as the discriminator.", "electra_small",
                     {"generator.width_fraction": 1}),
  "two_stage": ('ELECTRA Figure 3 right, "two-stage": first the generator alone, then a discriminator that starts as '
                "its copy.", "electra_small",
                {"objective.name": "two_stage", "objective.weight_tying": "none", "generator.width_fraction": 1}),
  "electra_lamb": ("ELECTRA-Small with LAMB, as the paper trains it; the learning rate is the best of four "
                   "(docs/results/lamb-vs-adamw.md).", "electra_small",
                   {"optimizer.name": "lamb", "optimizer.learning_rate": 1e-3}),
  "electra_no_attention_dropout": (
    "ELECTRA-Small without dropout on the attention weights: fused attention kernels need none of it in memory.",
    "electra_small", {"model.attention_probs_dropout_prob": 0.0}),

  "bert_static": ('RoBERTa Table 1, row "static": ten masks of each example, used in turn, epoch by epoch.',
                  "bert_small", {"data.masking.num_static_masks": 10}),
  "bert_segment_pair": ('RoBERTa Table 2, row "SEGMENT-PAIR": pairs of segments with next sentence prediction; no '
                        "short sequences (section 3.1).", "bert_small",
                        {"objective.name": "mlm_nsp", "data.format": "SEGMENT-PAIR",
                         "data.short_sequence_share": 0.0}),
  "bert_sentence_pair": ('RoBERTa Table 2, row "SENTENCE-PAIR": pairs of sentences with NSP, batches of equally many '
                         "tokens.", "bert_small",
                         {"objective.name": "mlm_nsp", "data.format": "SENTENCE-PAIR", **ONE_SHAPE_A_CALL}),
  "bert_full_sentences": ('RoBERTa Table 2, row "FULL-SENTENCES": rows filled across documents, no NSP.',
                          "bert_small", {"data.format": "FULL-SENTENCES"}),
  "bert_doc_sentences": ('RoBERTa Table 2, row "DOC-SENTENCES": rows of one document, batches of equally many tokens, '
                         "no NSP.", "bert_small", {"data.format": "DOC-SENTENCES", **ONE_SHAPE_A_CALL}),
  # Learning rates by the square root of the batch; 8 and 32 times the smallest one, as in the paper.
  "bert_batch_128": ("RoBERTa Table 3, first row at our scale: the smallest batch.", "bert_small",
                     {"train.batch_size": 128, "optimizer.learning_rate": 2.5e-4}),
  "bert_batch_1024": ('RoBERTa Table 3, row "2K" at our scale: eight times the smallest batch.', "bert_small",
                      {"train.batch_size": 1024, "optimizer.learning_rate": 7e-4}),
  "bert_batch_4096": ('RoBERTa Table 3, row "8K" at our scale: 32 times the smallest batch.', "bert_small",
                      {"train.batch_size": 4096, "optimizer.learning_rate": 1.4e-3}),
}


def get_config(argument: str | None = None):
  name, _, variant = (argument or "").partition(",")
  return common.variant(recipes.from_rows(ROWS, name), variant)
