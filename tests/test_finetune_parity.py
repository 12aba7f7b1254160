"""Does fine-tuning from a Hugging Face folder do what transformers does? The same logits after the same updates."""

import json

import numpy as np
import pytest

from configs.finetune import own
from electra_jax import config as config_lib
from electra_jax import finetune
from electra_jax.finetuning import predictions, pretrained

WORDS = ["the", "cat", "sat", "on", "mat", "dog", "rain", "fell", "all", "night"]


def test_five_updates_of_bert_for_sequence_classification(tmp_path):
  torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
  import jax
  torch.manual_seed(0)
  hf_config = transformers.BertConfig(
    vocab_size=15, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3)
  model = transformers.BertForSequenceClassification(hf_config)
  model.bert.save_pretrained(tmp_path)
  (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
  generator = np.random.default_rng(0)
  rows = [{"text": " ".join(generator.choice(WORDS, int(generator.integers(2, 9)))), "label": "abc"[i % 3]}
          for i in range(20)]
  path = tmp_path / "train.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))

  c = own.get_config("classification")
  c.model.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  c.optimizer.update(learning_rate=1e-3, weight_decay_rate=0.0)
  c.train.update(batch_size=8, compute_dtype="float32")
  c.task.update(init_from=str(tmp_path), train_path=str(path), dev_path=str(path), max_length=16, num_epochs=2.0,
                pooler="tanh", layer_decay=1.0, fresh_layers=0)
  start, task = pretrained.load(str(tmp_path)), finetune.tasks.make(c.task)
  data = finetune.read_data(task, start.tokenizer, 16)
  config = config_lib.resolve(finetune.complete(c, start, 20))
  mesh = finetune.sharding.make_mesh(config.mesh, jax.devices()[:1])
  run, seeds = finetune.make_run(config, task, start, mesh), (3,)
  state = finetune.init_seeds(run, seeds)
  head = state.params["encoder"]["classification_head"]
  np.testing.assert_allclose(head["dense"]["kernel"][0].T, model.bert.pooler.dense.weight.detach().numpy(), atol=1e-7)
  with torch.no_grad():
    model.classifier.weight.copy_(torch.tensor(np.array(head["output"]["kernel"][0].T)))
    model.classifier.bias.copy_(torch.tensor(np.array(head["output"]["bias"][0])))

  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)
  _, rate = finetune.optim.make(config.optimizer, config.train.num_steps)
  step_fn = jax.jit(lambda state, batch: finetune.update(state, batch, jax.numpy.stack([jax.random.key(3)]), run=run))
  for step in range(5):
    batch = finetune.train_batch(run, data["train"].features, seeds, step)
    state, loss = step_fn(state, batch)
    kept = np.array(batch["row_weight"][0]) > 0
    theirs = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"],
              "attention_mask": batch["attention_mask"], "labels": batch["label"]}
    theirs = {name: torch.tensor(np.array(x[0])[kept].astype(np.int64)) for name, x in theirs.items()}
    found = model(**theirs)
    optimizer.zero_grad()
    found.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = float(rate(step))
    optimizer.step()
    assert float(loss[0]) == pytest.approx(found.loss.item(), abs=2e-5)
  rows = {name: jax.numpy.asarray(x[0]) for name, x in batch.items()}
  outputs = jax.vmap(lambda params: predictions.apply(run, params, rows, train=False))(state.params)
  ours = np.asarray(outputs["classification_head"][0])[kept]
  model.eval()
  # Five updates of Adam magnify the rounding of gradients near zero: its direction is their sign.
  np.testing.assert_allclose(ours, model(**theirs).logits.detach().numpy(), atol=2e-3)
