"""Keys of every recipe, each with its unit and the reason for its default.

A recipe calls `defaults()`, overwrites the lines that its paper's table names, and returns the result. Keys that
hold a placeholder (None) are derived by `electra_jax.config.resolve`; setting one overrides the derivation.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

WIKIPEDIA = "tfds:wikipedia/20230601.en"  # of the papers' corpora what TFDS fetches and prepares by itself
# Encoder sizes: ELECTRA Table 4 (its Base and Large are BERT's and RoBERTa's too). Heads are always 64 wide.
SIZES = {
  "small": dict(hidden_size=256, embedding_size=128, num_hidden_layers=12, num_attention_heads=4,
                intermediate_size=1024),
  "base": dict(hidden_size=768, embedding_size=768, num_hidden_layers=12, num_attention_heads=12,
               intermediate_size=3072),
  "large": dict(hidden_size=1024, embedding_size=1024, num_hidden_layers=24, num_attention_heads=16,
                intermediate_size=4096),
}
BERT_MASKING = {"mask_share": 0.8, "random_share": 0.1}  # of the chosen tokens; the rest stay (RoBERTa section 2.3)


def defaults() -> ConfigDict:
  """Every key. Units: steps are optimizer updates, sizes are counts, rates and shares are in [0, 1]."""
  c = ConfigDict()
  c.seed = 0  # the only source of randomness: data order, masks, initialisation, dropout, sampling

  # ---- model: the encoder that is kept (ELECTRA's discriminator, BERT, RoBERTa). Names are Hugging Face's.
  # hidden_size, embedding_size, num_hidden_layers, num_attention_heads, intermediate_size: a row of SIZES
  c.model = ConfigDict(SIZES["base"])
  c.model.vocab_size = placeholder(int)  # rows of the token table: the tokenizer's, rounded up to a multiple of 128
  c.model.max_position_embeddings = 512  # rows of the position table
  c.model.position_offset = 0  # first row in use; RoBERTa starts at padding id + 1 = 2
  c.model.type_vocab_size = 2  # segments A and B; RoBERTa has a single row
  c.model.hidden_act = "gelu"  # gelu (erf) | gelu_new (tanh approximation, the released TF code's)
  c.model.hidden_dropout_prob = 0.1
  c.model.attention_probs_dropout_prob = 0.1
  c.model.layer_norm_eps = 1e-12  # RoBERTa: 1e-5
  c.model.initializer_range = 0.02  # standard deviation of the truncated normal
  c.model.position_init = "normal"  # of the position table: normal | sinusoidal (little text: docs/troubleshooting.md)

  # ---- generator: the small masked LM of ELECTRA; unused by the MLM objective (ELECTRA section 3.2)
  c.generator = ConfigDict()
  c.generator.kind = "learned"  # learned (a masked LM) | unigram | uniform (both: from the corpus's token counts)
  c.generator.width_fraction = 1 / 3  # of hidden size, FFN size and heads (Table 4, "Generator Size")
  c.generator.depth_fraction = 1.0  # of layers: the paper shrinks only the widths
  c.generator.hidden_size = placeholder(int)  # the four below are derived from the fractions
  c.generator.intermediate_size = placeholder(int)
  c.generator.num_attention_heads = placeholder(int)
  c.generator.num_hidden_layers = placeholder(int)

  # ---- objective
  c.objective = ConfigDict()
  # rtd (ELECTRA) | mlm (RoBERTa) | mlm_nsp (BERT) | a row of electra_jax/objectives/table.py
  c.objective.name = "rtd"
  c.objective.mlm_weight = 1.0  # of the masked-LM loss (the generator's, where there is one); adversarial: of REINFORCE
  c.objective.rtd_weight = 50.0  # λ: the discriminator's binary loss is far smaller (Appendix A, footnote 8)
  c.objective.weight_tying = "token_embeddings"  # generator and encoder: none | token_embeddings | embeddings | all
  c.objective.sampling_temperature = 1.0  # of the generator's softmax when replacements are drawn
  c.objective.sampling_excludes_original = False  # never draw the token that was masked (Appendix F)
  # replace_mlm, all_tokens_mlm: of the kept encoder's loss; the paper names none. Derived: 1, or 1 / masking.rate where
  # the mean is over all tokens, so that a masked one weighs the same in both (docs/results/table3.md)
  c.objective.encoder_mlm_weight = placeholder(float)
  c.objective.generator_steps = placeholder(int)  # two_stage: updates of the first stage; derived: half of the run

  # ---- data
  c.data = ConfigDict()
  # Text, .jsonl, .csv, .tsv or .parquet, a directory, glob, gs:// or s3:// of these, tfds:NAME[:SPLIT], hf:PATH[:SPLIT]
  # or "pydoc:" (English that Python carries); several with weights: "wiki/*2,books.txt*0.5" (docs/data_formats.md)
  c.data.path = ""
  c.data.text_field = "text"  # the field of a record (JSONL, CSV, TSV, Parquet, TFDS) that holds the document
  c.data.text_format = "auto"  # auto (by name and first bytes) | what each file is: text jsonl json csv tsv parquet
  c.data.on_bad_record = "error"  # error | skip: pass over records without text and count them in the statistics
  c.data.sentences = "line"  # line: one a line | en, de, ...: running text, by that language's rules (sentencex)
  c.data.heldout_share = 0.01  # share of documents kept for evaluation, chosen by a hash of their text
  c.data.max_documents = 0  # stop after so many documents; 0 = all
  c.data.shards_path = ""  # where packed examples live; "" = <workdir>/shards
  # ELECTRA | RoBERTa section 4.2: FULL-SENTENCES | DOC-SENTENCES | with labels for NSP: SEGMENT-PAIR | SENTENCE-PAIR
  c.data.format = "ELECTRA"
  c.data.sequence_length = 512  # tokens per example, special tokens included
  c.data.short_sequence_share = 0.05  # ELECTRA's builder and SEGMENT-PAIR: with a random shorter target length
  c.data.shard_examples = 65536  # examples per shard file: 16 MiB at length 128 and a vocabulary under 65,536
  c.data.num_workers = placeholder(int)  # processes that tokenize and pack; derived: the CPUs that it may use
  c.data.reader = "auto"  # tf (tf.data) | threads (no TensorFlow needed, same bytes) | auto (tf if installed)

  c.data.tokenizer = ConfigDict()
  c.data.tokenizer.kind = "sentencepiece"  # sentencepiece (unigram) | sentencepiece_bpe | wordpiece | byte_bpe
  c.data.tokenizer.path = ""  # file or directory of an existing vocabulary; "" = train one on data.path
  c.data.tokenizer.vocab_size = 30522  # entries, special tokens included (BERT's count)
  c.data.tokenizer.lowercase = True  # the papers' BERT and ELECTRA models are uncased
  c.data.tokenizer.training_bytes = 100_000_000  # text that a new vocabulary is learnt from

  c.data.masking = ConfigDict()
  c.data.masking.rate = 0.15  # k = ceil(rate * n) of an example's n tokens (ELECTRA section 2, footnote 2)
  c.data.masking.mask_share = 1.0  # chosen positions that become [MASK] (ELECTRA section 2); BERT: 0.8
  c.data.masking.random_share = 0.0  # chosen positions that become a random token, the rest stay; BERT: 0.1
  c.data.masking.unit = "token"  # token | word (whole words) | span (of words; geometric lengths as in SpanBERT)
  c.data.masking.rarity_exponent = 0.0  # in training, odds of a token are count ** -exponent (ELECTRA Appendix F)
  c.data.masking.never_mask = ()  # entries of the vocabulary that are neither masked nor drawn, besides special ones
  c.data.masking.num_static_masks = 0  # 0 = a new mask each epoch; 10 = BERT's ten fixed ones (RoBERTa 4.1)

  # ---- optimizer
  c.optimizer = ConfigDict()
  c.optimizer.name = "lamb"  # lamb | adamw
  c.optimizer.learning_rate = 2e-4  # peak, after warm-up; configs/finetune/own.py: by the encoder's width
  c.optimizer.schedule = "linear"  # after linear warm-up: linear | cosine | constant | wsd | inverse_sqrt
  c.optimizer.warmup_steps = placeholder(int)  # derived: 10,000, or a tenth of a shorter run
  c.optimizer.beta1 = 0.9
  c.optimizer.beta2 = 0.999
  c.optimizer.epsilon = 1e-6
  c.optimizer.weight_decay_rate = 0.01  # decoupled; never on biases and layer norms
  c.optimizer.bias_correction = True  # False: Adam as the released BERT and ELECTRA code has it
  c.optimizer.clip_norm = 1.0  # global gradient norm; 0 = off (RoBERTa Table 9)
  # parameters, moments, update split over mesh.fsdp and mesh.data, parameters gathered once (ZeRO)
  c.optimizer.shard_state = False

  # ---- train
  c.train = ConfigDict()
  c.train.batch_size = 256  # sequences per optimizer update, over all devices and accumulation steps
  c.train.num_steps = 766_000
  c.train.accumulation_steps = 1  # micro-batches per update, for batches that do not fit in memory
  c.train.compute_dtype = "bfloat16"  # bfloat16 | float32; parameters, softmax, losses and norms are float32
  c.train.matmul_precision = "default"  # of linear maps: default (compute_dtype) | fp8 (GPUs from Hopper on)
  c.train.steps_per_dispatch = 1  # updates in one program, for small models on GPUs; divides every other cadence
  # What the backward pass computes anew instead of keeping it, in each layer: none | full (least memory, 1/3 more
  # FLOPs) | dots (all but linear maps) | all_dots (all but linear maps and attention's products)
  c.train.remat = "none"
  # Attention, layer norm and GELU: auto (kernels in 16 bits) | xla | triton | mosaic (Hopper: attention over 128 to 512
  # tokens, heads of 64 or 128, and GELU within the product before it; else Triton's) | pallas (TPUs: attention alone;
  # compiled for them, but never run on one)
  c.train.kernels = "auto"
  c.train.log_every_steps = 100
  c.train.on_nonfinite = "stop"  # a loss or gradient that is NaN or infinite: stop | skip (leave out the update)

  # ---- evaluation on held-out documents
  c.eval = ConfigDict()
  c.eval.every_steps = 10_000  # 0 = only at the end
  c.eval.batch_size = placeholder(int)  # sequences; derived: one micro-batch
  c.eval.max_examples = 8192  # 0 = all
  c.eval.finetune_tasks = ""  # tasks to fine-tune on during pre-training (ELECTRA Table 5), e.g. "cola,rte"; see task
  c.eval.finetune_every_steps = 0  # each so many steps, and at the end; 0 = only at the end

  # ---- checkpoints
  c.checkpoint = ConfigDict()
  c.checkpoint.every_steps = 5_000  # a final one is always written
  c.checkpoint.keep_last = 2
  c.checkpoint.keep_every_steps = 0  # besides, keep each checkpoint at a multiple of this for ever; 0 = none
  # Whose parameters to start from: published weights, with their sizes and vocabulary (recipe:continued suits them), or
  # another run's workdir, whose sizes must be this run's.
  c.checkpoint.init_from = ""

  # ---- task: fine-tuning; unused in pre-training
  c.task = ConfigDict()
  # "" = pre-training; a row of electra_jax/tasks/__init__.py: cola, ..., squad_v2.0, race, own_classification, ...
  c.task.name = ""
  c.task.init_from = ""  # a run's workdir, a fine-tuned one (RoBERTa: RTE, STS-B, MRPC from MNLI), published weights
  c.task.from_scratch = False  # only sizes and vocabulary of init_from: the baseline of what pre-training is worth
  c.task.fresh_layers = 0  # top layers that start with new weights (Zhang et al. 2021): after short pre-trainings
  c.task.data_dir = ""  # folder with GLUE's folders (official TSV, JSONL) or SQuAD's or RACE's files, or tfds:glue
  c.task.train_path = ""  # own data: .jsonl, .csv or .tsv; SQuAD: JSON of another name than data_dir's
  c.task.dev_path = ""  # own data; "" = a tenth of the training examples
  c.task.test_path = ""  # own data without labels, to be predicted; "" = none
  c.task.text_fields = "text"  # own data: the field of the text, of a pair two with a comma; of tagging the words
  c.task.class_weights = "none"  # own_classification: none | balanced (each label counts the same in the loss)
  c.task.label_field = "label"  # own data: the field of the label, score or tags
  c.task.metric = ""  # what decides between runs; "" = the task's first
  c.task.max_length = 128  # tokens of an example, special tokens included (ELECTRA's and BERT's GLUE)
  c.task.pad_to_max_length = False  # batches all of max_length: one program to compile, not one for each length
  c.task.max_train_examples = 0  # train on so many, chosen at random and always the same; 0 = all
  c.task.window_stride = 128  # SQuAD: tokens between the starts of a long context's windows (BERT's code)
  c.task.max_question_length = 64  # tokens: SQuAD's question (BERT's code), RACE's question and answer (RoBERTa: 128)
  c.task.swap_pairs = False  # train on pairs in both orders: MRPC and STS-B are symmetric
  c.task.num_epochs = 3.0  # passes over the training examples
  c.task.warmup_share = 0.1  # of all updates (ELECTRA Table 5); RoBERTa Table 10: 0.06
  c.task.layer_decay = 1.0  # layer-wise: 0.8, Large 0.9 (ELECTRA Table 5); 1 = none (RoBERTa); own.py: by width
  # What a sentence's head reads: cls ([CLS]: the papers) | mean (of all tokens; more after a short pre-training, which
  # teaches [CLS] nothing; transformers has no class for it)
  c.task.pooling = "cls"
  c.task.pooler = "none"  # before the classifier: none (ELECTRA) | tanh (BERT, RoBERTa) | gelu (transformers' ELECTRA)
  c.task.span_head = "independent"  # SQuAD: independent (start, end: BERT, RoBERTa) | joint (end given start: ELECTRA)
  c.task.evals_per_epoch = 1  # dev scores; each also saves a checkpoint
  c.task.select = "last"  # last (ELECTRA) | best (RoBERTa: the parameters with the best dev score)
  c.task.num_seeds = 5  # runs with seeds seed, seed + 1, ...: RoBERTa reports the median of 5, ELECTRA of 10
  c.task.seeds_at_once = 0  # of these in one program, each with its own parameters and moments; 0 = all
  c.task.write_test_predictions = False  # also answer the test splits; of GLUE a zip for the leaderboard

  # ---- devices: the product must be the device count; -1 = the rest
  # data: whole models | fsdp: parameters and optimizer split too | tensor: heads, FFN and vocabulary split
  c.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

  # ---- logs (metrics.jsonl is always written)
  c.log = ConfigDict()
  c.log.tensorboard = True  # event files in <workdir>/tensorboard
  c.log.wandb_project = ""  # "" = off; needs `pip install wandb`
  return c.lock()  # a misspelt key in a recipe is an error
