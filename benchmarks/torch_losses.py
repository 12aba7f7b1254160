"""What do transformers' networks lose on a batch of ours? The parts that the peers of pre-training share."""

import numpy as np
import torch
from torch.nn import functional

from benchmarks import step_peer


def tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
  """A batch with the types that torch's indexing and embeddings want."""
  rows = {name: torch.from_numpy(np.array(value)) for name, value in batch.items()}
  return {name: value if value.is_floating_point() else value.long() for name, value in rows.items()}


def inputs(read: torch.Tensor, rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
  """The arguments of a network that reads this text."""
  return {"input_ids": read, "attention_mask": rows["attention_mask"], "token_type_ids": rows["token_type_ids"]}


def encode(encoder, read: torch.Tensor, rows: dict[str, torch.Tensor]) -> torch.Tensor:
  """[batch, length, hidden]"""
  return encoder(**inputs(read, rows)).last_hidden_state


def masked_logits(network, read: torch.Tensor, rows: dict[str, torch.Tensor]) -> torch.Tensor:
  """A masked LM's logits [batch, predictions, vocab] of a text with masks or replacements."""
  encoder, head = step_peer.parts_of(network)
  places = rows["masked_positions"][..., None].expand(-1, -1, encoder.config.hidden_size)
  return head(encode(encoder, read, rows).gather(1, places))


def masked_loss(logits: torch.Tensor, rows: dict[str, torch.Tensor]) -> torch.Tensor:
  """Mean cross-entropy over the masked positions."""
  each = functional.cross_entropy(logits.float().flatten(0, 1), rows["masked_ids"].flatten(), reduction="none")
  return mean(each, rows["masked_weights"].flatten())


def judge(network, read: torch.Tensor, rows: dict[str, torch.Tensor]):
  """A discriminator's logits [batch, length], and 1.0 where a token was replaced."""
  return network(**inputs(read, rows)).logits.float(), (read != rows["input_ids"]).float()


def judged_loss(logits: torch.Tensor, is_replaced: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
  """Mean binary cross-entropy over the tokens that the discriminator is asked about."""
  return mean(functional.binary_cross_entropy_with_logits(logits, is_replaced, reduction="none"), asked.float())


def mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
  """Weighted; no shape depends on the data, as torch.compile wants it."""
  return (values * weights).sum() / weights.sum()
