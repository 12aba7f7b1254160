"""Recipes of `launch/reproduce.sh`: the papers' claims, repeated with ELECTRA-Small's sizes on a budget of minutes.

`--config=configs/evidence.py:electra_small`, or :electra_small,fast for a further variant. A row is (the paper's row,
the recipe or row that it changes, {key: value}). `TABLES` are the claims: name -> (row, the paper's number of each of
`metrics`, of Base or of longer runs, so the order counts). The models of a table get the same FLOPs in the paper's
convention, but for those in `steps_of`: so many times the steps of another one.

Differs from the paper in `electra_small`: the warm-up is a tenth of the run, which has tens of thousands of steps and
not a million. Initial weights are as wide for 256 units as 0.02 is for 768: both networks leave their plateaus
thousands of updates earlier. As by the released code's defaults, the generator has a quarter of the width and all
embeddings are shared; with half of it and the token table alone, which is the preprint's text, the discriminator learnt
no position more exactly than to a few tokens (docs/results/small-vs-bert.md). The optimizer is AdamW, with bias
correction: in runs this short the discriminator learnt less with LAMB, which the preprint names, at every learning rate
that was tried (docs/results/lamb-vs-adamw.md). Masks and GELU are the preprint's (`configs/small.py:released` has the
released code's).
"""

from configs import variants
from configs.ablations import MNLI_SST2, WITH_NSP, compared
from configs.ablations import ROWS as ABLATIONS
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
                 {"objective.name": "mlm", "data.masking.mask_share": 0.8, "data.masking.random_share": 0.1}),

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
  "generator_unigram": ('ELECTRA Figure 3 left, "unigram": fake tokens by their frequency in the training text.',
                        "electra_small", {"generator.kind": "unigram"}),
  "adversarial": ('ELECTRA Figure 3 right, "adversarial": REINFORCE in place of maximum likelihood (Appendix D).',
                  "electra_small", {"objective.name": "adversarial"}),
  "tying_none": ("ELECTRA section 3.2: generator and discriminator share nothing.", "electra_small",
                 {"objective.weight_tying": "none"}),
  "tying_token_embeddings": ("ELECTRA section 3.2: the token embeddings are shared; electra_small shares those of "
                             "positions and segments too.", "electra_small",
                             {"objective.weight_tying": "token_embeddings"}),
  **{name: (ABLATIONS[f"appendix_f_{name}"][0], base, ABLATIONS[f"appendix_f_{name}"][2]) for name, base in (
    ("temperature", "electra_small"), ("excluded_original", "electra_small"), ("contrastive", "electra_small"),
    ("rare_tokens", "bert_small"), ("hard_tokens", "bert_small"))},
  "electra_lamb": ("ELECTRA-Small with LAMB, as the paper trains it; the learning rate is the best of four "
                   "(docs/results/lamb-vs-adamw.md).", "electra_small",
                   {"optimizer.name": "lamb", "optimizer.learning_rate": 1e-3}),
  "electra_sinusoids": ("ELECTRA-Small whose position tables start as sinusoids (configs/common.py: position_init).",
                        "electra_small", {"model.position_init": "sinusoidal"}),
  "bert_sinusoids": ("BERT-Small whose position table starts as sinusoids.", "bert_small",
                     {"model.position_init": "sinusoidal"}),
  "preprint": ("ELECTRA-Small's generator and sharing as in the preprint (Table 4, section 3.2), with LAMB.",
               "electra_lamb", {"generator.width_fraction": 1 / 2, "objective.weight_tying": "token_embeddings"}),
  "preprint_sharing": ("preprint, with the tables of positions and segments shared too, as in the released code.",
                       "preprint", {"objective.weight_tying": "embeddings"}),
  "preprint_width": ("preprint, with a generator as wide as the discriminator, as in the released code.", "preprint",
                     {"generator.width_fraction": 1}),
  "preprint_adamw": ("preprint, with AdamW and its rate.", "preprint",
                     {"optimizer.name": "adamw", "optimizer.learning_rate": 5e-4}),
  "preprint_uncorrected": ("preprint, with AdamW without bias correction, as in the released code.",
                           "preprint_adamw", {"optimizer.bias_correction": False}),
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

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
TABLES = {
  "small-vs-bert": dict(
    source="ELECTRA Table 1", says="ELECTRA-Small is ahead of BERT-Small at equal training FLOPs.",
    rows={"ELECTRA-Small": ("electra_small", 79.0), "BERT-Small": ("bert_small", 74.7)},
    tasks=(*GLUE, "wnli"), flops=1e17, paper_flops=1.4e18),
  "table3": dict(
    says="ELECTRA is best, All-Tokens MLM comes close; learning from 15 % of the tokens costs most.",
    too_small=("All-Tokens MLM",),
    **compared("ELECTRA Table 3", {
      "ELECTRA": "electra_small", "All-Tokens MLM": "all_tokens_mlm", "Replace MLM": "replace_mlm",
      "ELECTRA 15%": "electra_15", "BERT": "bert_small"})),
  "table3-15": dict(
    says="Learning from 15 % of the tokens, and not from all, costs most.",
    **compared("ELECTRA Table 3", {"ELECTRA": "electra_small", "ELECTRA 15%": "electra_15"})),
  "roberta-masking": dict(
    says="Dynamic masks are as good as static ones or slightly better.", tasks=MNLI_SST2,
    **compared("RoBERTa Table 1", {"static": "bert_static", "dynamic": "bert_small"}, MNLI_SST2)),
  "roberta-formats": dict(
    says="Without NSP results are as good or better; single sentences hurt.", tasks=MNLI_SST2,
    too_small=("FULL-SENTENCES", "DOC-SENTENCES"),
    **compared("RoBERTa Table 2", {
      "SEGMENT-PAIR": "bert_segment_pair", "SENTENCE-PAIR": "bert_sentence_pair",
      "FULL-SENTENCES": "bert_full_sentences", "DOC-SENTENCES": "bert_doc_sentences"}, MNLI_SST2, **WITH_NSP)),
  "roberta-batch": dict(
    says="At equal epochs a batch eight times as large has the better perplexity, one of 32 times too.",
    tasks=MNLI_SST2, too_small=("batch 1,024 (2K)", "batch 4,096 (8K)"),
    **compared("RoBERTa Table 3", {"256": "bert_batch_128", "2K": "bert_batch_1024", "8K": "bert_batch_4096"},
               ("perplexity", *MNLI_SST2),
               **{"256": "batch 128 (256)", "2K": "batch 1,024 (2K)", "8K": "batch 4,096 (8K)"})),
  "lamb-vs-adamw": dict(
    source="ELECTRA Appendix A", says="LAMB does not outperform a well-tuned Adam.",
    rows={"LAMB": ("electra_lamb",), "AdamW": ("electra_small",)}),
  "generator-size": dict(
    source="ELECTRA Figure 3, left",
    says="At equal steps, generators of a quarter to a half of the discriminator are best.",
    rows={"1/4": ("electra_small",), "1/2": ("generator_half",), "1": ("generator_full",)}, behind=("1",),
    steps_of={"1/2": ("1/4", 1), "1": ("1/4", 1)}),
  "two-stage": dict(
    source="ELECTRA Figure 3, right",
    says="Training in two stages does not outperform joint training; both are ahead of BERT.",
    rows={"joint": ("electra_small",), "two-stage": ("two_stage",), "BERT": ("bert_small",)},
    behind=("two-stage", "BERT")),
  "weight-tying": dict(
    source="ELECTRA section 3.2", says="Shared token embeddings help: what nothing shares is behind.",
    rows={"token embeddings": ("tying_token_embeddings", 84.3), "none": ("tying_none", 83.6),
          "all embeddings": ("electra_small",)}),
  "generator-training": dict(
    source="ELECTRA Figure 3",
    says="Neither a unigram generator nor an adversarial one is as good as maximum likelihood.",
    rows={"ELECTRA": ("electra_small",), "unigram": ("generator_unigram",), "adversarial": ("adversarial",)},
    behind=("unigram", "adversarial"), too_small=("adversarial",)),
  "appendix-f-electra": dict(
    source="ELECTRA Appendix F", says="Other draws of the generator and a contrastive objective do not help.",
    rows={"ELECTRA": ("electra_small",), "temperature 2": ("temperature",),
          "never the original": ("excluded_original",), "contrastive": ("contrastive",)}, behind=("contrastive",),
    too_small=("contrastive",)),
  "appendix-f-bert": dict(
    source="ELECTRA Appendix F", says="Masks on rare or hard tokens bring BERT little.",
    rows={"BERT": ("bert_small",), "rare tokens": ("rare_tokens",), "hard tokens": ("hard_tokens",)}),
  "released": dict(
    source="ELECTRA section 3.2, Table 4, and the released code",
    says="What the released code has otherwise than the preprint does not change the result.",
    rows={"preprint": ("preprint",), "all embeddings shared": ("preprint_sharing",),
          "generator as wide": ("preprint_width",), "AdamW": ("preprint_adamw",),
          "AdamW, uncorrected": ("preprint_uncorrected",), "released": ("electra_small,released",)}),
  "sinusoids": dict(
    source="our own recipes", says="Positions that start as sinusoids bring both networks off their plateaus earlier.",
    rows={"ELECTRA": ("electra_small",), "ELECTRA, sinusoids": ("electra_sinusoids",), "BERT": ("bert_small",),
          "BERT, sinusoids": ("bert_sinusoids",)}),
  "fast-vs-faithful": dict(
    source="our own recipes",
    says="Without attention dropout, and with `:fast` as a whole, the same quality takes less time.",
    rows={"faithful": ("electra_small",), "no attention dropout": ("electra_no_attention_dropout",),
          "no attention dropout, equal time": ("electra_no_attention_dropout",),
          "fast": ("electra_small,fast",), "fast, equal time": ("electra_small,fast",)},
    # As measured alone on an H200 with four layers (docs/results/fast-vs-faithful.md); `bench step` times other cards.
    steps_of={"no attention dropout, equal time": ("faithful", 5.08 / 5.02),
              "fast, equal time": ("faithful", 7.83 / 5.30 / 4)}),  # its batch is four times as large
}
FLOPS = 2e16  # of each model, where neither its table nor the command names another number

# Table 5's fine-tuning but for the learning rate, three times as large: at 1e-4 MNLI is hardly learnt
# (docs/results/small-vs-bert.md). 12,000 examples are all of CoLA, MRPC, STS-B and RTE. One length for all batches of a
# task: one program to compile; at most 1.5 % of the examples are longer with BERT's vocabulary, RTE's excepted (12 %,
# as in the papers).
FINE_TUNING = (
  "task.num_seeds=5", "task.max_train_examples=12000", "optimizer.learning_rate=3e-4", "task.pad_to_max_length=True",
  "eval.batch_size=256", "cola:task.max_length=48", "sst2:task.max_length=64",
  *(f"{task}:task.max_length=96" for task in ("mnli", "stsb", "qqp", "mrpc")),
  *(f"{task}:task.max_length=128" for task in ("qnli", "rte", "wnli")))


def get_config(argument: str | None = None):
  name, _, variant = (argument or "").partition(",")
  return variants.apply(recipes.from_rows(ROWS, name), variant)
