"""The objectives of the ablations with what is known of each: who gets a gradient, and the losses at initialisation."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from tests.objectives.test_objectives import (
  GENERATOR,
  TRANSFORMER,
  initialise,
  make,
  make_batch,
  value_and_gradients,
)

EQUAL = FrozenConfigDict(dict(kind="learned", hidden_size=32, intermediate_size=64, num_attention_heads=2,
                              num_hidden_layers=1))
UNIGRAM = FrozenConfigDict({**GENERATOR.to_dict(), "kind": "unigram"})
COUNTS = np.r_[np.zeros(5, int), np.arange(1, 96)]  # five special ids, then ordinary ones
LN2, LN100 = np.log(2), np.log(100)
BODY = {"discriminator/(embeddings|layer_..)/.*": True, "discriminator/rtd_head/.*": True}
GENERATOR_BODY = {"generator/(embeddings|layer_..)/.*": True, "generator/mlm_head/.*": True}

# row -> objective, arguments of `make`, phase, {group: does it get a gradient?}, {metric: value at initialisation}
ROWS = {
  "electra_15": ("electra_15", {}, 0, BODY | GENERATOR_BODY, {"mlm/loss": LN100, "rtd/loss": LN2}),
  "electra_15_other": ("electra_15_other", {}, 0, BODY | GENERATOR_BODY, {"mlm/loss": LN100, "rtd/loss": LN2}),
  "replace_mlm": ("replace_mlm", {}, 0, GENERATOR_BODY | {
    "encoder/(embeddings|layer_..)/.*": True, "encoder/mlm_head/.*": True},
    {"mlm/loss": LN100, "replace_mlm/loss": LN100}),
  "replace_mlm without its own loss": ("replace_mlm", dict(encoder_mlm_weight=0.0, weight_tying="none"), 0,
                                       GENERATOR_BODY | {"encoder/.*": False}, {}),
  "all_tokens_mlm": ("all_tokens_mlm", {}, 0, GENERATOR_BODY | {
    "encoder/(embeddings|layer_..)/.*": True, "encoder/mlm_head/.*": True, "encoder/copy_head/.*": True},
    {"mlm/loss": LN100}),
  "contrastive": ("contrastive", {}, 0, BODY | GENERATOR_BODY | {"discriminator/sentence_head/.*": True},
                  {"mlm/loss": LN100, "rtd/loss": LN2, "sentence/loss": LN2}),
  "contrastive, sentences alone": ("contrastive", dict(rtd_weight=0.0, mlm_weight=0.0), 0, {
    "discriminator/sentence_head/.*": True, "discriminator/rtd_head/.*": False, "generator/.*": False}, {}),
  "hard_tokens": ("hard_tokens", dict(weight_tying="none"), 0, {
    "encoder/(embeddings|layer_..)/.*": True, "encoder/mlm_head/.*": True,
    "generator/(embeddings|layer_..|baseline_head)/.*": True}, {"mlm/loss": LN100}),
  "adversarial": ("adversarial", dict(weight_tying="none"), 0, BODY | GENERATOR_BODY | {
    "generator/baseline_head/.*": True},
    {"mlm/loss": LN100, "rtd/loss": LN2, "adversarial/reward": -LN2, "adversarial/baseline_loss": LN2}),
  "adversarial, baseline alone": ("adversarial", dict(rtd_weight=0.0, mlm_weight=0.0), 0, {
    "generator/baseline_head/.*": True, "generator/(embeddings|layer_..|mlm_head)/.*": False,
    "discriminator/.*": False}, {}),
  "adversarial, no discriminator": ("adversarial", dict(rtd_weight=0.0, weight_tying="none"), 0, GENERATOR_BODY | {
    "generator/baseline_head/.*": True, "discriminator/.*": False}, {}),
  "two_stage, first": ("two_stage", dict(generator=EQUAL, weight_tying="none"), 0,
                       GENERATOR_BODY | {"discriminator/.*": False}, {"mlm/loss": LN100}),
  "two_stage, second": ("two_stage", dict(generator=EQUAL, weight_tying="none"), 1, BODY | {"generator/.*": False},
                        {"mlm/loss": LN100, "rtd/loss": LN2}),
  "rtd, all tied": ("rtd", dict(generator=EQUAL, weight_tying="all"), 0, BODY | {"discriminator/mlm_head/.*": True},
                    {"mlm/loss": LN100, "rtd/loss": LN2}),
  "rtd, embeddings tied": ("rtd", dict(weight_tying="embeddings"), 0, BODY | {
    "generator/(layer_..|embeddings_project|mlm_head)/.*": True}, {"mlm/loss": LN100, "rtd/loss": LN2}),
  "adversarial, embeddings tied": ("adversarial", dict(weight_tying="embeddings"), 0, BODY | {
    "generator/(layer_..|embeddings_project|mlm_head|baseline_head)/.*": True}, {"mlm/loss": LN100, "rtd/loss": LN2}),
  "rtd, unigram": ("rtd", dict(generator=UNIGRAM, token_counts=COUNTS), 0, BODY, {"rtd/loss": LN2}),
}


@functools.cache
def init(row):
  name, arguments, *_ = ROWS[row]
  return initialise(make(name, **arguments), make_batch())


@functools.cache
def run(row, dtype="float32"):
  name, arguments, phase, *_ = ROWS[row]
  transformer = dataclasses.replace(TRANSFORMER, dtype=jnp.dtype(dtype))
  loss, pairs, gradients = value_and_gradients(make(name, transformer, **arguments), make_batch(), init(row),
                                               phase=phase)
  return float(loss), pairs, gradients
