"""Rows of the papers' ablations: --config=configs/ablations.py:table3_bert, or :table3_bert,tiny for a further variant.

A row is (the paper's row and what it prints, the recipe or row that it changes, {key: value}). `TABLES` are the papers'
tables, which `python -m electra_jax.tools.experiments run ablations:table3` trains and compares.
"""

from configs import variants
from electra_jax import recipes

# What the papers print: table -> metrics and, of each row, their numbers. GLUE's average is of the dev sets.
PAPER = {
  "ELECTRA Table 3": (("average",), {"ELECTRA": (85.0,), "All-Tokens MLM": (84.3,), "Replace MLM": (82.4,),
                                     "ELECTRA 15%": (82.4,), "BERT": (82.2,)}),
  "ELECTRA Tables 1 and 2": (("average",), {
    "ELECTRA-Small": (79.0,), "BERT-Small": (74.7,), "ELECTRA-Base": (85.1,), "BERT-Base": (82.2,),
    "ELECTRA-Large": (89.0,), "BERT-Large": (87.2,)}),  # BERT is the paper's own
  "RoBERTa Table 1": (("squad_v2.0", "mnli", "sst2"), {"static": (78.3, 84.3, 92.5), "dynamic": (78.7, 84.0, 92.9)}),
  "RoBERTa Table 2": (("squad_v1.1", "squad_v2.0", "mnli", "sst2", "race"), {
    "SEGMENT-PAIR": (90.4, 78.7, 84.0, 92.9, 64.2), "SENTENCE-PAIR": (88.7, 76.2, 82.9, 92.1, 63.0),
    "FULL-SENTENCES": (90.4, 79.1, 84.7, 92.5, 64.8), "DOC-SENTENCES": (90.6, 79.7, 84.7, 92.7, 65.6)}),
  "RoBERTa Table 3": (("perplexity", "mnli", "sst2"), {
    "256": (3.99, 84.7, 92.7), "2K": (3.68, 85.2, 92.9), "8K": (3.77, 84.6, 92.8)}),
  "RoBERTa Table 4": (("squad_v1.1", "squad_v2.0", "mnli", "sst2"), {
    "BOOKS + WIKI": (93.6, 87.3, 89.0, 95.3), "+ additional data": (94.0, 87.7, 89.3, 95.6),
    "+ pretrain longer": (94.4, 88.7, 90.0, 96.1), "+ pretrain even longer": (94.6, 89.4, 90.2, 96.4)}),
}
TITLES = {"average": "{} GLUE", "squad_v1.1": "SQuAD 1.1 {}", "squad_v2.0": "SQuAD 2.0 {}", "mnli": "MNLI-m {}",
          "sst2": "SST-2 {}", "race": "RACE {}", "perplexity": "ppl {}"}


def numbers(table: str, row: str, metrics: tuple[str, ...] = ("average",)) -> tuple[float, ...]:
  """What a row of PAPER has for some metrics."""
  names, rows = PAPER[table]
  return tuple(rows[row][names.index(metric)] for metric in metrics)


def printed(table: str, row: str) -> str:
  """A row of PAPER in words.

  >>> printed("RoBERTa Table 1", "static")
  'SQuAD 2.0 78.3, MNLI-m 84.3, SST-2 92.5'
  """
  names, rows = PAPER[table]
  return ", ".join(TITLES[name].format(number) for name, number in zip(names, rows[row]))


NO_NUMBERS = "The figure prints no numbers."
LAYERS_STAY = "The figure prints no numbers; the layers stay Base's twelve."
HIDDEN_256 = {"model.hidden_size": 256, "model.embedding_size": 256, "model.intermediate_size": 1024,
              "model.num_attention_heads": 4}
HIDDEN_512 = {"model.hidden_size": 512, "model.embedding_size": 512, "model.intermediate_size": 2048,
              "model.num_attention_heads": 8}
FOUR_TIMES = "The paper names no steps: four times Table 4's are ours."
FIVE_CORPORA = "160GB, a --config.data.path of all five corpora (section 3.2)"
STEPS_500K = {"train.num_steps": 500_000}
DYNAMIC = {"data.masking.num_static_masks": 0}  # RoBERTa, from section 4.1 on
LARGER_BATCHES = "batches of as many tokens, so of more sequences"
NO_NSP = {"objective.name": "mlm", **DYNAMIC}


def _figure3_left(fraction: float) -> dict:
  return {"generator.width_fraction": fraction, **STEPS_500K}


def _tying(kind: str) -> dict:
  return {"objective.weight_tying": kind, **_figure3_left(1)}  # the generator is as large as the discriminator


def _table3(row: str, about: str, base: str, objective: str = "") -> tuple[str, str, dict]:
  return (f'ELECTRA Table 3, row "{row}": {printed("ELECTRA Table 3", row)}; {about}', base,
          {"objective.name": objective} if objective else {})


def _roberta(table: str, row: str, about: str, changes: dict, base: str = "bert_original_base"
             ) -> tuple[str, str, dict]:
  return f'{table}, row "{row}", {about}: {printed(table, row)}.', base, changes


def _roberta_table3(row: str, rate: float, beta2: float, warmup_steps: int, batch_size: int, num_steps: int
                    ) -> tuple[str, str, dict]:
  """The paper tunes the warm-up and does not print it: ours is BERT's, of large batches RoBERTa's share of the run.

  beta2 is section 3.1's for large batches; all else is Table 2's FULL-SENTENCES, WordPiece included (larger BPE: 4.4).
  """
  return _roberta("RoBERTa Table 3", row, f"{batch_size} sequences, {num_steps:,} steps, learning rate {rate:g}", {
    "optimizer.learning_rate": rate, "optimizer.beta2": beta2, "optimizer.warmup_steps": warmup_steps,
    "train.batch_size": batch_size, "train.num_steps": num_steps}, base="roberta_table2_full_sentences")


def _roberta4(row: str, corpora: str, num_steps: int) -> tuple[str, str, dict]:
  return _roberta("RoBERTa Table 4", row, f"{corpora}, {num_steps:,} steps", {"train.num_steps": num_steps},
                  base="roberta_large")


ROWS = {
  # ---- ELECTRA Table 3
  "table3_electra": _table3("ELECTRA", "ELECTRA-Base as it is.", "base"),
  "table3_all_tokens_mlm": _table3("All-Tokens MLM", "predicts every token, with a copy gate.", "base",
                                   "all_tokens_mlm"),
  "table3_replace_mlm": _table3("Replace MLM", "masked tokens replaced by the generator's, MLM loss.", "base",
                                "replace_mlm"),
  "table3_electra_15": _table3("ELECTRA 15%", "the discriminator's loss at the masked positions only.", "base",
                               "electra_15"),
  "table3_bert": _table3("BERT", "BERT-Base as the paper trains it.", "bert_base"),
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
  "appendix_f_hard_tokens": (
    'ELECTRA Appendix F, negative result 1: a model guesses "which tokens BERT would struggle to predict", and these '
    'are masked; "fairly minor speedups over regular BERT". The rest is ours: a network of the generator\'s size '
    "learns BERT's losses, and of twice as many positions half are masked, with odds of e to the guessed loss.",
    "bert_base", {"objective.name": "hard_tokens", "objective.weight_tying": "none", "data.masking.rate": 0.3}),
  "appendix_f_temperature": (
    "ELECTRA Appendix F, negative result 2: a raised temperature of the generator's softmax; did not improve results. "
    "The paper names no temperature: 2 is ours.", "base", {"objective.sampling_temperature": 2.0}),
  "appendix_f_excluded_original": (
    "ELECTRA Appendix F, negative result 2: the generator never draws the correct token; did not improve results.",
    "base", {"objective.sampling_excludes_original": True}),
  "appendix_f_contrastive": ("ELECTRA Appendix F, negative result 3: a sentence-level contrastive objective. It "
                             '"slightly decreased performance on downstream tasks".', "base",
                             {"objective.name": "contrastive"}),

  # ---- ELECTRA Figures 1 and 4: sizes, and curves to convergence
  **{f"figure1_{recipe}": (f'ELECTRA Figure 1, "{row}": {printed("ELECTRA Tables 1 and 2", row)}.', base, {})
     for recipe, row, base in (
       ("electra_small", "ELECTRA-Small", "small"), ("bert_small", "BERT-Small", "bert_small"),
       ("electra_base", "ELECTRA-Base", "base"), ("bert_base", "BERT-Base", "bert_base"),
       ("electra_large", "ELECTRA-Large", "large"), ("bert_large", "BERT-Large", "bert_large"))},
  **{f"figure4_{name}_{size}": (
    f"ELECTRA Figure 4 left and center: {label} of {size} hidden units. The figure's sizes and numbers are not in the "
    "text: sizes are Figure 3's, generators a quarter of them; the layers stay Base's twelve.", recipe, sizes | changes)
     for size, sizes in ((512, HIDDEN_512), (256, HIDDEN_256))
     for name, label, recipe, changes in (("electra", "ELECTRA", "base", {"generator.width_fraction": 1 / 4}),
                                          ("bert", "BERT", "bert_base", {}))},
  "figure4_electra_small_converged": (
    f"ELECTRA Figure 4 right: ELECTRA-Small \"trained fully to convergence\". {FOUR_TIMES}", "small",
    {"train.num_steps": 4_000_000}),
  "figure4_bert_small_converged": (
    f"ELECTRA Figure 4 right: BERT-Small \"trained fully to convergence\". {FOUR_TIMES}", "bert_small",
    {"train.num_steps": 5_800_000}),

  # ---- RoBERTa Tables 1, 2, 3, 4
  "roberta_table1_static": _roberta("RoBERTa Table 1", "static", "ten masks per sequence, each in every tenth epoch",
                                    {"data.masking.num_static_masks": 10}),
  "roberta_table1_dynamic": _roberta("RoBERTa Table 1", "dynamic", "a new mask in each epoch", DYNAMIC),
  "roberta_table2_segment_pair": _roberta("RoBERTa Table 2", "SEGMENT-PAIR", "with NSP", DYNAMIC),
  "roberta_table2_sentence_pair": _roberta("RoBERTa Table 2", "SENTENCE-PAIR", f"with NSP; {LARGER_BATCHES}",
                                           {"data.format": "SENTENCE-PAIR", **DYNAMIC}),
  "roberta_table2_full_sentences": _roberta("RoBERTa Table 2", "FULL-SENTENCES", "without NSP",
                                            {"data.format": "FULL-SENTENCES", **NO_NSP}),
  "roberta_table2_doc_sentences": _roberta("RoBERTa Table 2", "DOC-SENTENCES", f"without NSP; {LARGER_BATCHES}",
                                           {"data.format": "DOC-SENTENCES", **NO_NSP}),
  "roberta_table3_256": _roberta_table3("256", 1e-4, 0.999, 10_000, 256, 1_000_000),
  "roberta_table3_2k": _roberta_table3("2K", 7e-4, 0.98, 6_000, 2048, 125_000),
  "roberta_table3_8k": _roberta_table3("8K", 1e-3, 0.98, 1_500, 8192, 31_000),
  # The corpora are the user's data.path: docs/papers.md says where they are.
  "roberta_table4_100k": _roberta4("BOOKS + WIKI", "16GB", 100_000),
  "roberta_table4_additional_data": _roberta4("+ additional data", FIVE_CORPORA, 100_000),
  "roberta_table4_300k": _roberta4("+ pretrain longer", FIVE_CORPORA, 300_000),
  "roberta_table4_500k": _roberta4("+ pretrain even longer", FIVE_CORPORA, 500_000),
}



def compared(table: str, recipes_of: dict[str, str], metrics: tuple[str, ...] = ("average",), **names: str) -> dict:
  """The fields `rows` and `metrics` of a table of TABLES: label -> (recipe, what the paper prints in its row).

  Args:
    recipes_of: row of PAPER -> recipe.
    names: row -> label, where they differ.
  """
  rows = {names.get(row, row): (recipe, *numbers(table, row, metrics)) for row, recipe in recipes_of.items()}
  return {"source": table, "rows": rows, "metrics": metrics}


MNLI_SST2 = ("mnli", "sst2")
WITH_NSP = {"SEGMENT-PAIR": "SEGMENT-PAIR, NSP", "SENTENCE-PAIR": "SENTENCE-PAIR, NSP"}
TABLES = {  # name -> (row, the paper's number of each of `metrics`; GLUE's average where nothing else is named)
  "table3": dict(
    says="ELECTRA is best; learning from 15 % of the tokens costs most.",
    **compared("ELECTRA Table 3", {
      "ELECTRA": "table3_electra", "All-Tokens MLM": "table3_all_tokens_mlm", "Replace MLM": "table3_replace_mlm",
      "ELECTRA 15%": "table3_electra_15", "BERT": "table3_bert"})),
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
    rows={"ELECTRA": ("table3_electra",), "BERT": ("table3_bert",), "rare tokens": ("appendix_f_rare_tokens",),
          "hard tokens": ("appendix_f_hard_tokens",),
          "temperature 2": ("appendix_f_temperature",), "never the original": ("appendix_f_excluded_original",),
          "contrastive": ("appendix_f_contrastive",)}),
  "figure1": dict(
    says="At every budget ELECTRA is ahead of BERT.",
    **compared("ELECTRA Tables 1 and 2", {
      "ELECTRA-Small": "figure1_electra_small", "BERT-Small": "figure1_bert_small",
      "ELECTRA-Base": "figure1_electra_base", "BERT-Base": "figure1_bert_base",
      "ELECTRA-Large": "figure1_electra_large", "BERT-Large": "figure1_bert_large"}) | {"source": "ELECTRA Figure 1"}),
  "figure4": dict(
    source="ELECTRA Figure 4, left and center", says="ELECTRA's gains grow larger as the models get smaller.",
    rows={f"{label} {size}": (row,) for size in (768, 512, 256) for label, row in (
      ("ELECTRA", "table3_electra" if size == 768 else f"figure4_electra_{size}"),
      ("BERT", "table3_bert" if size == 768 else f"figure4_bert_{size}"))}),
  "figure4_right": dict(
    source="ELECTRA Figure 4, right", says="A small ELECTRA converges to higher accuracy than BERT.",
    rows={"ELECTRA-Small": ("figure4_electra_small_converged",), "BERT-Small": ("figure4_bert_small_converged",)}),
  "footnote7": dict(
    source="ELECTRA footnote 7", says="Random other positions than the masked ones are slightly worse.",
    rows={"ELECTRA": ("table3_electra", *numbers("ELECTRA Table 3", "ELECTRA")),
          "ELECTRA 15%": ("table3_electra_15", *numbers("ELECTRA Table 3", "ELECTRA 15%")),
          "other 15%": ("footnote7_other_15",)}),
  "roberta_table1": dict(
    says="Dynamic masks are as good as static ones or slightly better.",
    **compared("RoBERTa Table 1", {"static": "roberta_table1_static", "dynamic": "roberta_table1_dynamic"}, MNLI_SST2)),
  "roberta_table2": dict(
    says="Without NSP results are as good or better; single sentences hurt.",
    **compared("RoBERTa Table 2", {
      "SEGMENT-PAIR": "roberta_table2_segment_pair", "SENTENCE-PAIR": "roberta_table2_sentence_pair",
      "FULL-SENTENCES": "roberta_table2_full_sentences", "DOC-SENTENCES": "roberta_table2_doc_sentences"},
      MNLI_SST2, **WITH_NSP)),
  "roberta_table3": dict(
    says="Large batches improve perplexity and MNLI.",
    **compared("RoBERTa Table 3", {"256": "roberta_table3_256", "2K": "roberta_table3_2k", "8K": "roberta_table3_8k"},
               ("perplexity", *MNLI_SST2))),
  "roberta_table4": dict(
    says="More data helps, and longer training on it.",
    steps_of={"+ pretrain longer": ("BOOKS + WIKI", 3), "+ pretrain even longer": ("BOOKS + WIKI", 5)},
    **compared("RoBERTa Table 4", {
      "BOOKS + WIKI": "roberta_table4_100k", "+ additional data": "roberta_table4_additional_data",
      "+ pretrain longer": "roberta_table4_300k", "+ pretrain even longer": "roberta_table4_500k"}, MNLI_SST2)),
}


def get_config(argument: str | None = None):
  name, _, variant = (argument or "").partition(",")
  return variants.apply(recipes.from_rows(ROWS, name), variant)
