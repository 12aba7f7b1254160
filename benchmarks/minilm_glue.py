"""Does fine-tuning score what transformers' run_glue recipe scores from the same weights? MiniLM on four tasks of GLUE.

Both sides start from the same encoder and the same heads, see the same batches in the same order and use the same
hyper-parameters; what is left is dropout and rounding. Writes OUT/scores.json and OUT/scores.md.
"""

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

os.environ["JAX_PLATFORMS"] = "cpu"  # of this process, which only prepares; those it starts find their accelerator

import numpy as np

from configs.finetune import glue as recipe
from electra_jax import config as config_lib
from electra_jax import finetune, sharding, tasks
from electra_jax.finetuning import pretrained
from electra_jax.tasks.glue import GLUE

# transformers' defaults, and run_glue's usual length, batch and epochs
SETTINGS = {"optimizer.learning_rate": 5e-5, "optimizer.epsilon": 1e-8, "train.compute_dtype": "float32",
            "train.batch_size": 32, "task.num_epochs": 3.0, "task.warmup_share": 0.0, "task.layer_decay": 1.0,
            "task.max_length": 128, "task.pad_to_max_length": True, "task.pooler": "tanh", "log.tensorboard": False}
NUM_SEEDS = {"mrpc": 5, "rte": 5, "stsb": 5, "sst2": 3}
MAX_TRAIN = {"sst2": 10_000}  # a fixed subset: all of SST-2 takes seven times as long


def prepare_model(weights_dir: str, out: str) -> str:
  """A Hugging Face folder in float32; of a file with only some rows of the token table, zeros for the others."""
  from safetensors.numpy import load_file, save_file
  folder = os.path.join(out, "model")
  os.makedirs(folder, exist_ok=True)
  name = next(name for name in ("model.safetensors", "model_fp16.safetensors")
              if os.path.exists(os.path.join(weights_dir, name)))
  tensors = {key: x if x.dtype.kind in "iu" else x.astype(np.float32)
             for key, x in load_file(os.path.join(weights_dir, name)).items()}
  with open(os.path.join(weights_dir, "config.json"), encoding="utf-8") as file:
    model_config = json.load(file)
  table = "embeddings.word_embeddings"
  if f"{table}.kept_ids" in tensors:
    full = np.zeros((model_config["vocab_size"], model_config["hidden_size"]), np.float32)
    full[tensors.pop(f"{table}.kept_ids")] = tensors.pop(f"{table}.kept_rows")
    tensors[f"{table}.weight"] = full
  save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
  with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
    json.dump(model_config, file)
  places = [os.path.join(weights_dir, "vocab.txt"),
            os.path.join(weights_dir, "../../vocab/bert-base-uncased-vocab.txt.gz")]
  vocabulary = next(place for place in places if os.path.exists(place))
  with (gzip.open if vocabulary.endswith(".gz") else open)(vocabulary, "rb") as source, \
      open(os.path.join(folder, "vocab.txt"), "wb") as file:
    file.write(source.read())
  return folder


def prepare_data(data_dir: str, out: str, names: list[str], num_train: int, num_dev: int) -> str:
  """Unpacked official files, of which at most so many lines are kept (0: all), drawn by a fixed seed."""
  for task in names:
    folder = GLUE[task].folder
    os.makedirs(os.path.join(out, "data", folder), exist_ok=True)
    for split, limit in (("train", num_train or MAX_TRAIN.get(task, 0)), ("dev", num_dev)):
      path = os.path.join(data_dir, folder, f"{split}.tsv")
      path, opener = (path, open) if os.path.exists(path) else (f"{path}.gz", gzip.open)
      with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        header, *lines = (line.rstrip("\r\n") for line in file)
      lines = [line for line in lines if line.strip()]
      kept = sorted(random.Random(0).sample(range(len(lines)), limit)) if 0 < limit < len(lines) else range(len(lines))
      with open(os.path.join(out, "data", folder, f"{split}.tsv"), "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in [header, *(lines[i] for i in kept)])
  return os.path.join(out, "data")


def prepare_heads(task_name: str, model: str, data: str, num_seeds: int, epochs: float, path: str) -> list[list[int]]:
  """Writes the heads that our seeds begin with; returns our token ids of the dev split."""
  given = recipe.get_config(task_name)
  given.update_from_flattened_dict(SETTINGS)
  given.task.update(init_from=model, data_dir=data, num_epochs=epochs)
  start, task = pretrained.load(model), tasks.make(given.task)
  config = config_lib.resolve(finetune.complete(given, start, num_features=1))
  run = finetune.make_run(config, task, start, sharding.make_mesh(config.mesh))
  head = finetune.init_seeds(run, range(num_seeds)).params["encoder"]["classification_head"]["output"]
  np.savez(path, **{f"{seed}/{name}": np.asarray(head[name][seed]) for seed in range(num_seeds) for name in head})
  return [task.featurize(example, start.tokenizer, config.task.max_length)[0]["input_ids"]
          for example in task.read("dev")]


def commands(task: str, model: str, data: str, out: str, num_seeds: int, epochs: float, half: bool,
             own: list[str]) -> dict[str, list[str]]:
  """The process of each side; `half`: both compute in bfloat16; `own` are settings of ours alone."""
  settings = SETTINGS | {"task.num_epochs": epochs, "task.init_from": model, "task.data_dir": data,
                         "task.num_seeds": num_seeds} | ({"train.compute_dtype": "bfloat16"} if half else {})
  return {
    "ours": [sys.executable, "-m", "electra_jax.main", f"--config=configs/finetune/glue.py:{task}",
             f"--workdir={out}/ours/{task}", *(f"--config.{key}={value}" for key, value in settings.items()),
             *(f"--config.{setting}" for setting in own)],
    "transformers": [os.environ.get("PEER_PYTHON", sys.executable), "-m", "benchmarks.run_glue_peer",
                     f"--task={task}", f"--data={data}", f"--model={model}", f"--heads={out}/heads_{task}.npz",
                     f"--out={out}/transformers_{task}.json", f"--rate={SETTINGS['optimizer.learning_rate']}",
                     f"--batch_size={SETTINGS['train.batch_size']}", f"--epochs={epochs}",
                     f"--max_length={SETTINGS['task.max_length']}", f"--num_seeds={num_seeds}",
                     *(["--half"] if half else [])]}


def run_process(side: str, task: str, command: list[str], out: str) -> float:
  """Runs it with its log in OUT; returns its seconds."""
  environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
  environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TOKENIZERS_PARALLELISM": "false"}  # they share a device
  begin, path = time.time(), os.path.join(out, f"log_{side}_{task}.txt")
  with open(path, "w", encoding="utf-8") as log:
    done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
  if done.returncode:
    with open(path, encoding="utf-8") as log:
      print("".join(log.readlines()[-15:]), file=sys.stderr)
    raise SystemExit(f"{side} on {task} ended with status {done.returncode}: {path}")
  print(f"{task}, {side}: {time.time() - begin:.0f} s", flush=True)
  return time.time() - begin


def compare(task: str, out: str, ids: list[list[int]], seconds: dict[str, float]) -> dict:
  """All scores, medians and spreads of a task."""
  with open(os.path.join(out, "ours", task, "results.json"), encoding="utf-8") as file:
    ours = json.load(file)["runs"]
  with open(os.path.join(out, f"transformers_{task}.json"), encoding="utf-8") as file:
    theirs = json.load(file)
  found = {"seconds": seconds, "device_of_torch": theirs["device"], "torch": theirs["torch"],
           "transformers": theirs["transformers"], "num_dev": len(ids),
           "dev_rows_with_other_ids": sum(a != b for a, b in zip(ids, theirs["dev_ids"], strict=True)), "metrics": {}}
  for metric in theirs["runs"][0]["scores"]:
    sides = {"ours": [run["scores"][metric] for run in ours],
             "transformers": [run["scores"][metric] for run in theirs["runs"]]}
    rows = {side: {"scores": values, "median": statistics.median(values), "min": min(values), "max": max(values),
                   "sd": statistics.stdev(values) if len(values) > 1 else 0.0} for side, values in sides.items()}
    found["metrics"][metric] = rows | {"difference_of_medians": rows["ours"]["median"] - rows["transformers"]["median"]}
  return found


def table(found: dict) -> str:
  """Markdown, in percent."""
  lines = ["| Task | Metric | Ours: median (min to max) | transformers: median (min to max) | Difference | Seeds |",
           "|---|---|---|---|---|---|"]
  for task, one in found.items():
    for metric, rows in one["metrics"].items():
      shown = " | ".join(f"{100 * rows[s]['median']:.1f} ({100 * rows[s]['min']:.1f} to {100 * rows[s]['max']:.1f})"
                         for s in ("ours", "transformers"))
      lines.append(f"| {task} | {metric} | {shown} | {100 * rows['difference_of_medians']:+.1f} | "
                   f"{len(rows['ours']['scores'])} |")
  return "\n".join(lines) + "\n"


def main() -> None:
  """Prepares, runs both sides of every task a few at a time, and compares."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("data_dir", help="folder with MRPC/train.tsv[.gz] and the like")
  parser.add_argument("weights_dir", help="config.json, model.safetensors or model_fp16.safetensors, vocab.txt")
  parser.add_argument("out")
  parser.add_argument("--tasks", default="sst2,stsb,mrpc,rte")
  parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
  parser.add_argument("--num_seeds", type=int, default=0, help="0: 5, and 3 for SST-2")
  parser.add_argument("--num_train", type=int, default=0, help="training examples of a task; 0: all, 10 000 of SST-2")
  parser.add_argument("--num_dev", type=int, default=0, help="dev examples of each task; 0: all")
  parser.add_argument("--epochs", type=float, default=SETTINGS["task.num_epochs"])
  parser.add_argument("--half", action="store_true", help="bfloat16 on both sides, on a GPU; else float32")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of ours alone; repeatable")
  options = parser.parse_args()
  names, out, begin = options.tasks.split(","), os.path.abspath(options.out), time.time()
  os.makedirs(out, exist_ok=True)
  model = prepare_model(options.weights_dir, out)
  data = prepare_data(options.data_dir, out, names, options.num_train, options.num_dev)
  seeds = {task: options.num_seeds or NUM_SEEDS[task] for task in names}
  ids = {task: prepare_heads(task, model, data, seeds[task], options.epochs, f"{out}/heads_{task}.npz")
         for task in names}
  print(f"prepared in {time.time() - begin:.0f} s", flush=True)
  work = [(side, task, command) for task in names for side, command in commands(
    task, model, data, out, seeds[task], options.epochs, options.half, options.set).items()]
  with ThreadPoolExecutor(options.jobs) as pool:
    seconds = dict(zip([row[:2] for row in work], pool.map(lambda row: run_process(*row, out), work)))
  found = {task: compare(task, out, ids[task], {side: seconds[side, task] for side in ("ours", "transformers")})
           for task in names}
  with open(os.path.join(out, "scores.json"), "w", encoding="utf-8") as file:
    json.dump({"settings": SETTINGS | {"task.num_epochs": options.epochs}, "half": options.half, "set": options.set,
               "tasks": found, "seconds": time.time() - begin}, file, indent=2)
  with open(os.path.join(out, "scores.md"), "w", encoding="utf-8") as file:
    file.write(table(found))
  print(table(found) + f"{time.time() - begin:.0f} s in all, {options.jobs} processes at a time: {out}/scores.json")


if __name__ == "__main__":
  main()
