"""Does the joint span head compute what is written here by hand, and does its beam find what trying all spans finds?"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import bert_small
from electra_jax import config as config_lib
from electra_jax import sharding
from electra_jax.finetuning import losses
from electra_jax.models.bert import make_transformer_config
from electra_jax.models.joint_spans import JointSpanHead
from electra_jax.optim import decay_mask
from electra_jax.tasks import joint_spans

LENGTH, HIDDEN, MAX_ANSWER = 9, 16, 3
MASK = np.array([[1] * 9, [1] * 7 + [0] * 2, [1] * 8 + [0]], bool)
MAY_END = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 0], [0, 0, 1, 0, 1, 1, 0, 0, 0], [0] * 9], bool)
MAY_START = MAY_END & (np.arange(9) != 4)  # another window begins answers there


@pytest.fixture(scope="module")
def head():
  """(module of a number of best spans, vectors, parameters far from their start)."""
  given = bert_small.get_config("tiny")
  given.model.update(hidden_size=HIDDEN, embedding_size=HIDDEN, hidden_dropout_prob=0.0)
  config = config_lib.resolve(given)

  def make(num_best, dtype="float32"):
    transformer = make_transformer_config(config.model, num_tokens=400, dtype=dtype)
    return JointSpanHead(transformer, num_best, MAX_ANSWER)

  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.standard_normal((3, LENGTH, HIDDEN)), jnp.float32)
  shapes = jax.eval_shape(lambda: make(1).init(jax.random.key(0), x, batch_of()))["params"]
  return make, x, jax.tree.map(lambda s: 0.5 * rng.standard_normal(s.shape).astype(np.float32), shapes)


def batch_of(**fields):
  return {name: jnp.asarray(value) for name, value in
          {"attention_mask": MASK, "may_start": MAY_START, "may_end": MAY_END, **fields}.items()}


def log_softmax(values, mask):
  kept = np.where(mask, values, -np.inf)
  return kept - np.log(np.exp(kept - kept.max()).sum()) - kept.max()


def by_hand(params, x):
  """log p(start) and log p(end | start), [rows, starts] and [rows, starts, ends], one number at a time."""
  gelu = np.vectorize(lambda z: 0.5 * z * (1 + math.erf(z / math.sqrt(2))))
  starts = np.stack([log_softmax(row @ params["start"]["kernel"][:, 0] + params["start"]["bias"], mask)
                     for row, mask in zip(x, MASK)])
  ends = np.empty((3, LENGTH, LENGTH))
  for row in range(3):
    for start in range(LENGTH):
      logits = np.empty(LENGTH)
      for token in range(LENGTH):
        y = gelu(np.concatenate([x[row, token], x[row, start]]) @ params["dense"]["kernel"] + params["dense"]["bias"])
        y = (y - y.mean()) / np.sqrt(y.var() + 1e-12) * params["layer_norm"]["scale"] + params["layer_norm"]["bias"]
        logits[token] = (y @ params["output"]["kernel"] + params["output"]["bias"])[0]
      ends[row, start] = log_softmax(logits, MASK[row] & (np.arange(LENGTH) >= start)) if MASK[row, start] else -np.inf
  return starts, ends


def test_training_is_given_the_right_start(head):
  make, x, params = head
  starts, ends = by_hand(params, x)
  gold, last = np.array([3, 2, 0]), np.array([5, 2, 0])
  batch = batch_of(start=gold, end=last, is_impossible=np.array([0.0, 0, 1], np.float32))
  logit = jnp.array([0.3, -1.0, 2.0])

  def loss_of(params):
    found = make(1).apply({"params": params}, x, batch, True)
    return losses.joint_span({"joint_span_head": found, "answerable_head": logit}, batch), found

  (loss, found), gradients = jax.jit(lambda p: (loss_of(p), jax.grad(lambda p: loss_of(p)[0].sum())(p)))(params)
  assert found.shape == (3, LENGTH, 2)
  for row in range(3):
    for place in range(LENGTH):
      if MASK[row, place]:
        assert found[row, place, 0] == pytest.approx(starts[row, place], abs=1e-4)
        if place >= gold[row]:
          assert found[row, place, 1] == pytest.approx(ends[row, gold[row], place], abs=1e-4)
        else:  # no answer ends before it starts
          assert found[row, place, 1] < -1e30
    answerable = math.log1p(math.exp(logit[row] * (1 if row < 2 else -1)))
    assert loss[row] == pytest.approx(-(starts[row, gold[row]] + ends[row, gold[row], last[row]]) / 2 + answerable,
                                      abs=1e-4)
  assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 1e-5 for path, leaf in
             jax.tree_util.tree_leaves_with_path(gradients) if sharding.path_name(path) not in
             ("start/bias", "layer_norm/bias", "output/bias"))  # these move all logits alike


@pytest.mark.parametrize("num_best", [LENGTH, 2])
def test_the_beam_finds_what_trying_all_spans_finds(head, num_best):
  """As wide as the text it is exhaustive; a narrow one is so among its starts. Both seeds at once under vmap."""
  make, x, params = head
  seeds = jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), params)
  found = jax.jit(jax.vmap(lambda p: make(num_best).apply({"params": p}, x, batch_of())))(seeds)
  assert found.shape == (2, 3, 1 + num_best, 4)
  for seed, spans in enumerate(np.asarray(found)):
    starts, ends = by_hand(jax.tree.map(lambda leaf, seed=seed: leaf[seed], seeds), x)
    for row in range(3):
      tried = sorted(np.flatnonzero(MAY_START[row]), key=lambda i: -starts[row, i])[:num_best]
      fits = {(i, j): starts[row, i] + ends[row, i, j] for i in tried for j in range(i, min(i + MAX_ANSWER, LENGTH))
              if MAY_END[row, j]}
      best = sorted(fits, key=lambda span: -fits[span])[:num_best]
      assert [tuple(map(int, span[2:])) for span in spans[row, 1:]] == best + [(-1, -1)] * (num_best - len(best))
      np.testing.assert_allclose(spans[row, 1:1 + len(best), :2],
                                 np.reshape([(starts[row, i], ends[row, i, j]) for i, j in best], (-1, 2)), atol=1e-4)
      np.testing.assert_allclose(spans[row, 0], [starts[row, 0], ends[row, 0, 0], 0, 0], atol=1e-4)  # "not in here"


def test_spans_of_a_window_and_of_several_runs(head):
  make, x, params = head
  apply = jax.jit(lambda p, x: make(4, "bfloat16").apply({"params": p}, x, batch_of()))
  spans = np.asarray(apply(params, x))
  feature = {"input_ids": [1] * 9, "_begin": 3, "_offsets": np.array([[0, 1], [1, 3], [3, 3], [4, 5], [5, 8]]),
             "_owned": np.array([1, 0, 1, 1, 1], bool)}
  places = joint_spans.places(feature)
  assert places["may_start"].tolist() == [False] * 3 + [True, False, False, True, True, False]
  assert places["may_end"].tolist() == [False] * 3 + [True, True, False, True, True, False]
  found = joint_spans.candidates(spans[0], feature)
  assert [one[:2] for one in found] == [tuple(span[:2]) for span in spans[0, 1:].astype(float)]
  assert [one[2:] for one in found] == [(feature["_offsets"][int(i) - 3, 0], feature["_offsets"][int(j) - 3, 1])
                                        for i, j in spans[0, 1:, 2:]]
  assert joint_spans.candidates(spans[2], feature) == []
  broken = np.asarray(apply(params, x.at[:, 5].set(jnp.nan)))
  assert np.isnan(joint_spans.candidates(broken[0], feature)[0][:2]).all()  # the run has failed; not: has no answer
  np.testing.assert_allclose(joint_spans.average([spans, spans])[:, :, :2], spans[:, :, :2], atol=1e-5)


def test_every_parameter_is_placed_and_decays_by_its_name(head):
  _, _, params = head
  tree = {"encoder": {"joint_span_head": params}}
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  places = sharding.parameter_shardings(tree, mesh)["encoder"]["joint_span_head"]
  assert places["dense"]["kernel"].spec[0] == places["start"]["kernel"].spec[0] == "fsdp"
  decays = decay_mask(tree)["encoder"]["joint_span_head"]
  assert decays["dense"]["kernel"] and not decays["layer_norm"]["scale"] and not decays["start"]["bias"]
