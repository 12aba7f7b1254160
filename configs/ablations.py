"""Rows of the papers' ablations: --config=configs/ablations.py:table3_bert, or :table3_bert,tiny for a further variant.

A row is (the paper's row and what it prints, the recipe or row that it changes, {key: value}). `TABLES` are the papers'
tables, which `python -m electra_jax.tools.experiments run ablations:table3` trains and compares.
"""

from configs import variants
from electra_jax import recipes

NO_NUMBERS = "The figure prints no numbers."
LAYERS_STAY = "The figure prints no numbers; the layers stay Base's twelve."
HIDDEN_256 = {"model.hidden_size": 256, "model.embedding_size": 256, "model.intermediate_size": 1024,
              "model.num_attention_heads": 4}
HIDDEN_512 = {"model.hidden_size": 512, "model.embedding_size": 512, "model.intermediate_size": 2048,
              "model.num_attention_heads": 8}
STEPS_500K = {"train.num_steps": 500_000}
DYNAMIC = {"data.masking.num_static_masks": 0}  # RoBERTa, from section 4.1 on
NO_NSP = {"objective.name": "mlm", **DYNAMIC}


def _figure3_left(fraction: float) -> dict:
  return {"generator.width_fraction": fraction, **STEPS_500K}


def _tying(kind: str) -> dict:
  return {"objective.weight_tying": kind, **_figure3_left(1)}  # the generator is as large as the discriminator


def _roberta_table3(rate: float, beta2: float, warmup_steps: int, batch_size: int, num_steps: int) -> dict:
  """The paper tunes the warm-up and does not print it: ours is BERT's, of large batches RoBERTa's share of the run.

  beta2 is section 3.1's for large batches; all else is Table 2's FULL-SENTENCES, WordPiece included (larger BPE: 4.4).
  """
  return {"optimizer.learning_rate": rate, "optimizer.beta2": beta2, "optimizer.warmup_steps": warmup_steps,
          "train.batch_size": batch_size, "train.num_steps": num_steps}


ROWS = {
  # ---- ELECTRA Table 3
  "table3_electra": ('ELECTRA Table 3, row "ELECTRA": 85.0 GLUE; ELECTRA-Base as it is.', "base", {}),
  "table3_all_tokens_mlm": ('ELECTRA Table 3, row "All-Tokens MLM": 84.3 GLUE; predicts every token, with a copy gate.',
                            "base", {"objective.name": "all_tokens_mlm"}),
  "table3_replace_mlm": ('ELECTRA Table 3, row "Replace MLM": 82.4 GLUE; masked tokens replaced by the generator\'s, '
                         "MLM loss.", "base", {"objective.name": "replace_mlm"}),
  "table3_electra_15": ('ELECTRA Table 3, row "ELECTRA 15%": 82.4 GLUE; the discriminator\'s loss at the masked '
                        "positions only.", "base", {"objective.name": "electra_15"}),
  "table3_bert": ('ELECTRA Table 3, row "BERT": 82.2 GLUE; BERT-Base as the paper trains it.', "bert_base", {}),
  "footnote7_other_15": ("ELECTRA footnote 7: ELECTRA 15% on random other tokens than the masked ones; slightly below "
                         "Table 3's 82.4.", "base", {"objective.name": "electra_15_other"}),

  # ---- ELECTRA Figure 3, left: widths of generator and discriminator
  "figure3_generator_unigram": ('ELECTRA Figure 3 left, "unigram": fake tokens by their frequency in the training '
                                f"corpus, 500k steps. {NO_NUMBERS}", "base",
                                {"generator.kind": "unigram", **STEPS_500K}),
  "figure3_generator_64": ("ELECTRA Figure 3 left: a generator of 64 hidden units under a Base discriminator of 768, "
                           f"500k steps. {NO_NUMBERS}", "base", _figure3_left(1 / 12)),
  "figure3_generator_128": ("ELECTRA Figure 3 left: a generator of 128 hidden units under a Base discriminator of 768, "
                            f"500k steps. {NO_NUMBERS}", "base", _figure3_left(1 / 6)),
  "figure3_generator_256": ("ELECTRA Figure 3 left: a generator of 256 hidden units under a Base discriminator of 768, "
                            f'500k steps. Inside the 1/4 to 1/2 that "work best". {NO_NUMBERS}', "base",
                            _figure3_left(1 / 3)),
  "figure3_generator_512": ("ELECTRA Figure 3 left: a generator of 512 hidden units under a Base discriminator of 768, "
                            f"500k steps. {NO_NUMBERS}", "base", _figure3_left(2 / 3)),
  "figure3_generator_768": ("ELECTRA Figure 3 left: a generator of 768 hidden units under a Base discriminator of 768, "
                            f"500k steps. {NO_NUMBERS}", "base", _figure3_left(1)),
  "figure3_generator_unigram_discriminator_512": (
    'ELECTRA Figure 3 left, "unigram": fake tokens by corpus frequency under a discriminator of 512, 500k steps. '
    f"{NO_NUMBERS}", "figure3_generator_unigram", HIDDEN_512),
  "figure3_generator_unigram_discriminator_256": (
    'ELECTRA Figure 3 left, "unigram": fake tokens by corpus frequency under a discriminator of 256, 500k steps. '
    f"{NO_NUMBERS}", "figure3_generator_unigram", HIDDEN_256),
  **{f"figure3_generator_{generator}_discriminator_{discriminator}": (
    f"ELECTRA Figure 3 left: a generator of {generator} hidden units under a discriminator of {discriminator}, 500k "
    f"steps. {LAYERS_STAY}", "base", {**_figure3_left(generator / discriminator), **sizes})
     for discriminator, sizes in ((512, HIDDEN_512), (256, HIDDEN_256))
     for generator in (64, 128, 256, 512) if generator <= discriminator},

  # ---- ELECTRA Figure 3, right: training algorithms
  "figure3_two_stage": (
    'ELECTRA Figure 3 right, "two-stage": first the generator, then a discriminator that starts as its copy. It "does '
    'not end up outperforming joint training". The figure prints no numbers and the text no n: two stages of 400k '
    "steps cost what BERT's million does.", "base",
    {"objective.name": "two_stage", "objective.weight_tying": "none", "generator.width_fraction": 1,
     "train.num_steps": 800_000}),
  "figure3_adversarial": (
    'ELECTRA Figure 3 right, "adversarial": REINFORCE for a generator of 256 hidden units, above BERT, below ELECTRA. '
    "The figure prints no numbers; the generator's masked-LM accuracy is 54 %, not the 65 % of ELECTRA's (Appendix D).",
    "base", {"objective.name": "adversarial"}),
  "figure3_bert": ('ELECTRA Figure 3 right, "BERT": the baseline of the training algorithms, 82.2 GLUE at its end '
                   "(Table 3).", "bert_base", {}),

  # ---- ELECTRA section 3.2
  "tying_none": ('ELECTRA section 3.2, "Weight Sharing": 83.6 GLUE for no weight tying, 500k steps.', "base",
                 _tying("none")),
  "tying_token_embeddings": ('ELECTRA section 3.2, "Weight Sharing": 84.3 GLUE for tied token embeddings, 500k steps.',
                             "base", _tying("token_embeddings")),
  "tying_all": ('ELECTRA section 3.2, "Weight Sharing": 84.4 GLUE for all encoder weights tied, 500k steps.', "base",
                _tying("all")),

  # ---- ELECTRA Appendix F
  "appendix_f_rare_tokens": (
    'ELECTRA Appendix F, negative result 1: rarer tokens are masked more often; "fairly minor speedups over regular '
    'BERT". The paper gives no formula: odds of one over the square root of a token\'s count are ours.', "bert_base",
    {"data.masking.rarity_exponent": 0.5}),
  "appendix_f_temperature": (
    "ELECTRA Appendix F, negative result 2: a raised temperature of the generator's softmax; did not improve results. "
    "The paper names no temperature: 2 is ours.", "base", {"objective.sampling_temperature": 2.0}),
  "appendix_f_excluded_original": (
    "ELECTRA Appendix F, negative result 2: the generator never draws the correct token; did not improve results.",
    "base", {"objective.sampling_excludes_original": True}),
  "appendix_f_contrastive": ("ELECTRA Appendix F, negative result 3: a sentence-level contrastive objective. It "
                             '"slightly decreased performance on downstream tasks".', "base",
                             {"objective.name": "contrastive"}),

  # ---- RoBERTa Tables 1, 2, 3
  "roberta_table1_static": ('RoBERTa Table 1, row "static": ten masks per sequence, each used in every tenth epoch: '
                            "SQuAD 2.0 78.3, MNLI-m 84.3, SST-2 92.5.", "bert_original_base",
                            {"data.masking.num_static_masks": 10}),
  "roberta_table1_dynamic": ('RoBERTa Table 1, row "dynamic": a new mask in each epoch: SQuAD 2.0 78.7, MNLI-m 84.0, '
                             "SST-2 92.9.", "bert_original_base", DYNAMIC),
  "roberta_table2_segment_pair": ('RoBERTa Table 2, row "SEGMENT-PAIR", with NSP: SQuAD 90.4/78.7, MNLI-m 84.0, SST-2 '
                                  "92.9, RACE 64.2.", "bert_original_base", DYNAMIC),
  "roberta_table2_sentence_pair": ('RoBERTa Table 2, row "SENTENCE-PAIR", with NSP: SQuAD 88.7/76.2, MNLI-m 82.9, '
                                   "SST-2 92.1, RACE 63.0. Batches of as many tokens, so of more sequences.",
                                   "bert_original_base", {"data.format": "SENTENCE-PAIR", **DYNAMIC}),
  "roberta_table2_full_sentences": ('RoBERTa Table 2, row "FULL-SENTENCES", without NSP: SQuAD 90.4/79.1, MNLI-m 84.7, '
                                    "SST-2 92.5, RACE 64.8.", "bert_original_base",
                                    {"data.format": "FULL-SENTENCES", **NO_NSP}),
  "roberta_table2_doc_sentences": ('RoBERTa Table 2, row "DOC-SENTENCES", without NSP: SQuAD 90.6/79.7, MNLI-m 84.7, '
                                   "SST-2 92.7, RACE 65.6. Batches of as many tokens, so of more sequences.",
                                   "bert_original_base", {"data.format": "DOC-SENTENCES", **NO_NSP}),
  "roberta_table3_256": ('RoBERTa Table 3, row "256": 256 sequences, 1M steps, rate 1e-4: ppl 3.99, MNLI-m 84.7, SST-2 '
                         "92.7.", "roberta_table2_full_sentences",
                         _roberta_table3(1e-4, 0.999, 10_000, 256, 1_000_000)),
  "roberta_table3_2k": ('RoBERTa Table 3, row "2K": 2048 sequences, 125K steps, rate 7e-4: ppl 3.68, MNLI-m 85.2, '
                        "SST-2 92.9.", "roberta_table2_full_sentences",
                        _roberta_table3(7e-4, 0.98, 6_000, 2048, 125_000)),
  "roberta_table3_8k": ('RoBERTa Table 3, row "8K": 8192 sequences, 31K steps, rate 1e-3: ppl 3.77, MNLI-m 84.6, SST-2 '
                        "92.8.", "roberta_table2_full_sentences", _roberta_table3(1e-3, 0.98, 1_500, 8192, 31_000)),
}

ROBERTA = {"metrics": ("mnli", "sst2")}
TABLES = {  # name -> (row, the paper's number of each of `metrics`; GLUE's average where nothing else is named)
  "table3": dict(
    source="ELECTRA Table 3", says="ELECTRA is best; learning from 15 % of the tokens costs most.",
    rows={"ELECTRA": ("table3_electra", 85.0), "All-Tokens MLM": ("table3_all_tokens_mlm", 84.3),
          "Replace MLM": ("table3_replace_mlm", 82.4), "ELECTRA 15%": ("table3_electra_15", 82.4),
          "BERT": ("table3_bert", 82.2)}),
  "figure3_left": dict(
    source="ELECTRA Figure 3, left", says="Generators of a quarter to a half of the discriminator are best.",
    rows={name.removeprefix("figure3_generator_").replace("_discriminator_", " under "): (name,)
          for name in ROWS if name.startswith("figure3_generator")}),
  "figure3_right": dict(
    source="ELECTRA Figure 3, right", says="Neither two stages nor adversarial training outperform joint training.",
    rows={"ELECTRA": ("table3_electra",), "two-stage": ("figure3_two_stage",),
          "adversarial": ("figure3_adversarial",), "BERT": ("figure3_bert",)}),
  "tying": dict(
    source="ELECTRA section 3.2", says="Tied token embeddings help; tying all weights adds little.",
    rows={"none": ("tying_none", 83.6), "token embeddings": ("tying_token_embeddings", 84.3),
          "all": ("tying_all", 84.4)}),
  "appendix_f": dict(
    source="ELECTRA Appendix F", says="None of these helps.",
    rows={"ELECTRA": ("table3_electra",), "rare tokens": ("appendix_f_rare_tokens",),
          "temperature 2": ("appendix_f_temperature",), "never the original": ("appendix_f_excluded_original",),
          "contrastive": ("appendix_f_contrastive",)}),
  "footnote7": dict(
    source="ELECTRA footnote 7", says="Random other positions than the masked ones are slightly worse.",
    rows={"ELECTRA": ("table3_electra", 85.0), "ELECTRA 15%": ("table3_electra_15", 82.4),
          "other 15%": ("footnote7_other_15",)}),
  "roberta_table1": dict(
    source="RoBERTa Table 1", says="Dynamic masks are as good as static ones or slightly better.",
    rows={"static": ("roberta_table1_static", 84.3, 92.5), "dynamic": ("roberta_table1_dynamic", 84.0, 92.9)},
    **ROBERTA),
  "roberta_table2": dict(
    source="RoBERTa Table 2", says="Without NSP results are as good or better; single sentences hurt.",
    rows={"SEGMENT-PAIR, NSP": ("roberta_table2_segment_pair", 84.0, 92.9),
          "SENTENCE-PAIR, NSP": ("roberta_table2_sentence_pair", 82.9, 92.1),
          "FULL-SENTENCES": ("roberta_table2_full_sentences", 84.7, 92.5),
          "DOC-SENTENCES": ("roberta_table2_doc_sentences", 84.7, 92.7)}, **ROBERTA),
  "roberta_table3": dict(
    source="RoBERTa Table 3", says="Large batches improve perplexity and MNLI.",
    rows={"256": ("roberta_table3_256", 3.99, 84.7, 92.7), "2K": ("roberta_table3_2k", 3.68, 85.2, 92.9),
          "8K": ("roberta_table3_8k", 3.77, 84.6, 92.8)}, metrics=("perplexity", "mnli", "sst2")),
}


def get_config(argument: str | None = None):
  name, _, variant = (argument or "").partition(",")
  return variants.apply(recipes.from_rows(ROWS, name), variant)
