"""What does transformers' run_glue recipe score? BertForSequenceClassification, AdamW, linear decay, one task.

A plain loop of torch, so that data order and head can be given: the Trainer of run_glue has orders of its own. It
reads the official TSV files by itself and shares no code with electra_jax.
"""

import argparse
import json
import time

import numpy as np
import torch
import transformers
from scipy import stats
from sklearn import metrics
from tokenizers import BertWordPieceTokenizer

# task -> folder, text columns, label column, labels (none: a number)
TASKS = {
  "sst2": ("SST-2", ("sentence",), "label", ("0", "1")),
  "mrpc": ("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1")),
  "rte": ("RTE", ("sentence1", "sentence2"), "label", ("entailment", "not_entailment")),
  "stsb": ("STS-B", ("sentence1", "sentence2"), "score", ()),
}


def read(data_dir: str, task: str, split: str) -> tuple[list[tuple[str, ...]], list[float]]:
  """(texts, label numbers or scores) of DATA_DIR/FOLDER/SPLIT.tsv."""
  folder, columns, label, names = TASKS[task]
  with open(f"{data_dir}/{folder}/{split}.tsv", encoding="utf-8") as file:
    header, *lines = (line.rstrip("\n").split("\t") for line in file)
  places = [header.index(column) for column in columns]
  raw = [line[header.index(label)] for line in lines]
  texts = [tuple(line[place] for place in places) for line in lines]
  return texts, [names.index(value) if names else float(value) for value in raw]


def encode(model_dir: str, texts: list[tuple[str, ...]], max_length: int) -> list[tuple[list[int], list[int]]]:
  """(input ids, segments) by the tokenizer that transformers uses for BERT."""
  tokenizer = BertWordPieceTokenizer(f"{model_dir}/vocab.txt", lowercase=True)
  tokenizer.enable_truncation(max_length)
  found = tokenizer.encode_batch([text if len(text) == 2 else text[0] for text in texts])
  return [(one.ids, one.type_ids) for one in found]


def collate(rows, device) -> dict:
  """Padded tensors of some rows."""
  length = max(len(ids) for ids, _ in rows)
  columns = {"input_ids": [ids for ids, _ in rows], "token_type_ids": [kinds for _, kinds in rows],
             "attention_mask": [[1] * len(ids) for ids, _ in rows]}
  return {name: torch.tensor([values + [0] * (length - len(values)) for values in column], device=device)
          for name, column in columns.items()}


def train(options, seed: int, rows, labels) -> torch.nn.Module:
  """run_glue's recipe: dropout 0.1, AdamW without decay, clipping at 1, a linear rate from the peak to 0."""
  torch.manual_seed(seed)
  names = TASKS[options.task][3]
  model = transformers.BertForSequenceClassification.from_pretrained(
    options.model, num_labels=len(names) or 1, dtype=torch.float32).to(options.device).train()
  with np.load(options.heads) as heads, torch.no_grad():
    model.classifier.weight.copy_(torch.tensor(heads[f"{seed}/kernel"].T))
    model.classifier.bias.copy_(torch.tensor(heads[f"{seed}/bias"]))
  optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
                                fused=options.device == "cuda")
  per_epoch = -(-len(rows) // options.batch_size)
  num_steps = max(1, round(options.epochs * per_epoch))
  for step in range(num_steps):
    epoch, number = divmod(step, per_epoch)
    order = np.random.default_rng((seed, epoch)).permutation(len(rows))
    chosen = order[number * options.batch_size:(number + 1) * options.batch_size]
    target = torch.tensor([labels[i] for i in chosen], device=options.device)
    with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.half):
      loss = model(**collate([rows[i] for i in chosen], options.device),
                   labels=target if names else target.float()).loss
    optimizer.param_groups[0]["lr"] = options.rate * (1 - step / num_steps)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
  return model.eval()


def predict(model, rows, device, half: bool) -> np.ndarray:
  """Logits [rows, labels]."""
  with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16, enabled=half):
    parts = [model(**collate(rows[i:i + 64], device)).logits.float().cpu().numpy()
             for i in range(0, len(rows), 64)]
  return np.concatenate(parts)


def score(task: str, logits: np.ndarray, labels: list[float]) -> dict[str, float]:
  """The metrics of the `evaluate` library's GLUE, whose sources are these."""
  if task == "stsb":
    return {"spearman": float(stats.spearmanr(logits[:, 0], labels).statistic),
            "pearson": float(stats.pearsonr(logits[:, 0], labels).statistic)}
  best = logits.argmax(-1)
  found = {"accuracy": float(np.mean(best == np.array(labels)))}
  return found | ({"f1": float(metrics.f1_score(labels, best))} if task == "mrpc" else {})


def main() -> None:
  """Trains each seed and writes scores and token ids' checksums as JSON."""
  parser = argparse.ArgumentParser(description=__doc__)
  for name, kind in (("task", str), ("data", str), ("model", str), ("heads", str), ("out", str), ("rate", float),
                     ("batch_size", int), ("epochs", float), ("max_length", int), ("num_seeds", int)):
    parser.add_argument(f"--{name}", type=kind, required=True)
  parser.add_argument("--half", action="store_true", help="autocast to bfloat16")
  options = parser.parse_args()
  transformers.logging.set_verbosity_error()
  options.device = "cuda" if torch.cuda.is_available() else "cpu"
  begin = time.time()
  (train_texts, labels), (dev_texts, dev_labels) = (read(options.data, options.task, split) for split in
                                                    ("train", "dev"))
  rows, dev = (encode(options.model, texts, options.max_length) for texts in (train_texts, dev_texts))
  runs = []
  for seed in range(options.num_seeds):
    logits = predict(train(options, seed, rows, labels), dev, options.device, options.half)
    runs.append({"seed": seed, "scores": score(options.task, logits, dev_labels)})
    print(options.task, runs[-1], flush=True)
  with open(options.out, "w", encoding="utf-8") as file:
    json.dump({"runs": runs, "seconds": time.time() - begin, "device": options.device, "torch": torch.__version__,
               "transformers": transformers.__version__, "dev_ids": [ids for ids, _ in dev]}, file)


if __name__ == "__main__":
  main()
