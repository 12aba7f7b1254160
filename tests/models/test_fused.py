"""Do the GPU kernels compute what the plain code computes, and is that the gradient? On CPU, interpreted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from electra_jax import sharding
from electra_jax.models import attention, dropout, fused, linear_gelu, transformer
from electra_jax.models.kernels import mosaic_attention, mosaic_parts, tpu_attention, triton_attention, triton_rows

SEEDS = jnp.array([123456789, 987654321], jnp.uint32)


def normal(*shape, seed=0, dtype=jnp.float32):
  """Drawn by NumPy, which has nothing to compile."""
  return jnp.asarray(np.random.default_rng(seed + sum(shape)).standard_normal(shape, np.float32), dtype)


def gradients(function, arguments, seed=9):
  """(output, gradients of a random projection of it), by one program."""
  @jax.jit
  def run(*arguments):
    out, pullback = jax.vjp(function, *arguments)
    return out, pullback(jax.tree.map(lambda x: normal(*x.shape, seed=seed, dtype=x.dtype), out))

  return run(*arguments)


def check_equal(ours, theirs, tolerance=2e-5):
  for got, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    scale = float(jnp.abs(wanted).max())
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(wanted, np.float32), atol=tolerance * scale,
                               rtol=0)


def norm_step_by_step(x, y, bias, scale, offset, seeds, rate, epsilon):
  y = y + bias
  if rate:
    y = jnp.where(dropout.keep_mask(seeds, y.shape, rate), y / (1 - rate), 0)
  total = x + y
  out = standardised(total, epsilon) * scale + offset
  return out, out


def standardised(total, epsilon):
  centred = total - total.mean(-1, keepdims=True)
  return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("rate", (0.0, 0.3))
@pytest.mark.parametrize("kernels,width", (("xla", 384), ("interpret", 384), ("interpret", 512)))
def test_norm_gradients(rate, kernels, width):
  """A kernel takes rows of 384 in three parts, of 512 in two."""
  arguments = (normal(2, 32, width), normal(2, 32, width, seed=1), normal(width), 1 + normal(width, seed=2) / 8,
               normal(width, seed=3))
  ours = gradients(lambda *a: fused.dropout_add_norm(*a, SEEDS, rate, 1e-5, kernels), arguments)
  theirs = gradients(lambda *a: norm_step_by_step(*a, SEEDS, rate, 1e-5), arguments)
  check_equal(ours, theirs)


@pytest.mark.parametrize("kernels", ("xla", "interpret"))
def test_layer_norm_gradients(kernels):
  arguments = (normal(2, 16, 128), 1 + normal(128, seed=2) / 8, normal(128, seed=3))
  ours = gradients(lambda *a: fused.layer_norm(*a, 1e-12, kernels), arguments)
  theirs = gradients(lambda x, scale, offset: standardised(x, 1e-12) * scale + offset, arguments)
  check_equal(ours, theirs)


def test_layer_norm_on_a_tpu_loses_no_more_than_its_type(monkeypatch):
  """Features far from zero, whose squares' mean is 65 times the variance, and one that is constant."""
  arguments = (8 + normal(2, 16, 768, dtype=jnp.bfloat16).at[0, 0].set(0), 1 + normal(768, seed=2) / 8, normal(768))
  found = []
  for platform in ("cpu", "tpu"):
    monkeypatch.setattr(sharding, "platform", lambda platform=platform: platform)
    found.append(gradients(lambda *a: fused.layer_norm(*a, 1e-12, "xla"), arguments))
  assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(found))
  check_equal(*jax.tree.map(lambda x: x[1:] if x.ndim == 3 else x, found), tolerance=2**-8)


@pytest.mark.parametrize("hidden_act", ("gelu", "gelu_new"))
@pytest.mark.parametrize("kernels", ("xla", "interpret"))
def test_gelu_gradients(hidden_act, kernels):
  arguments = (2 * normal(2, 32, 256), normal(256))
  ours = gradients(lambda *a: fused.bias_gelu(*a, hidden_act, kernels), arguments)
  theirs = gradients(lambda x, bias: jax.nn.gelu(x + bias, approximate=hidden_act == "gelu_new"), arguments)
  check_equal(ours, theirs)


def test_gelu_within_the_product_before_it(monkeypatch):
  """Three tiles of a single program, which its two warpgroups take in turn."""
  monkeypatch.setattr(mosaic_parts, "multiprocessors", lambda: 1)
  x, kernel, bias = normal(1, 128, 256), normal(256, 384, seed=2) / 16, normal(384, seed=3)
  ours = jax.jit(lambda *a: gradients(lambda *a: linear_gelu.linear_gelu(*a, "interpret_mosaic"), a))(x, kernel, bias)
  theirs = gradients(lambda x, kernel, bias: jax.nn.gelu(x @ kernel + bias, approximate=False), (x, kernel, bias))
  check_equal(jax.block_until_ready(ours), theirs)


def attention_inputs(length, batch=2, heads=2, head_dim=16, dtype=jnp.float32):
  mask = jnp.arange(length) < jnp.array([length, max(1, length // 3)])[:batch, None]
  return (normal(batch, length, heads, 3, head_dim, dtype=dtype), normal(heads, 3, head_dim)), mask


@pytest.mark.parametrize("rate", (0.0, 0.25))
@pytest.mark.parametrize("length", (32, 128, 256))
def test_attention_kernels_equal_plain_attention(length, rate):
  arguments, mask = attention_inputs(length)
  ours, again, theirs = (
    gradients(lambda *a, kernels=kernels: attention.attention(*a, mask, SEEDS, rate, kernels), arguments)
    for kernels in ("interpret", "recompute", "xla"))
  check_equal(ours, theirs)
  check_equal(again, theirs)


@pytest.mark.parametrize("length, rate, head_dim", ((128, 0.0, 64), (256, 0.25, 64), (128, 0.0, 128),
                                                    (256, 0.25, 128)))
def test_hopper_kernels_equal_plain_attention(length, rate, head_dim):
  """Interpreted thread by thread, so a single head; the second example ends within the first block of keys."""
  arguments, mask = attention_inputs(length, heads=1, head_dim=head_dim)

  @functools.partial(jax.jit, static_argnums=0)  # as one program: the interpreter runs one kernel at a time
  def both(kernels, arguments):
    return gradients(lambda *a: attention.attention(*a, mask, SEEDS, rate, kernels), arguments)
  ours = jax.block_until_ready(both("interpret_mosaic", arguments))
  check_equal(ours, both("xla", arguments))


@pytest.mark.parametrize("length, rate", ((128, 0.25), (256, 0.0), (256, 0.25)))
def test_tpu_kernels_equal_plain_attention(length, rate):
  """The second example ends within the first block of keys; four heads are two programs."""
  arguments, mask = attention_inputs(length, heads=4, head_dim=64)

  @functools.partial(jax.jit, static_argnums=0)
  def both(kernels, arguments):
    return gradients(lambda *a: attention.attention(*a, mask, SEEDS, rate, kernels), arguments)
  check_equal(both("interpret_pallas", arguments), both("xla", arguments))


@pytest.mark.parametrize("kernels", ("xla", "interpret"))
def test_a_row_without_tokens_has_no_nan(kernels):
  arguments, mask = attention_inputs(32)
  out = gradients(lambda *a: attention.attention(*a, mask & False, SEEDS, 0.1, kernels), arguments)
  assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(out))


@pytest.mark.parametrize("batch", (4, 1))  # 1: an initialisation's example, which four groups of devices cannot split
def test_every_device_drops_what_one_device_would(batch):
  """Kernels on eight devices (batch and heads split) equal the plain code on one."""
  arguments, mask = attention_inputs(32, batch=2, heads=2)
  arguments = tuple(jnp.concatenate([x, x + 1])[:batch] for x in arguments[:1]) + arguments[1:]
  mask = jnp.concatenate([mask, mask])[:batch]
  layer = (normal(batch, 32, 128), normal(batch, 32, 128, seed=1), normal(128), normal(128, seed=2),
           normal(128, seed=3))
  mlp = (normal(batch, 32, 256), normal(256))

  def all_of(kernels):
    return (gradients(lambda *a: attention.attention(*a, mask, SEEDS, 0.25, kernels), arguments),
            gradients(lambda *a: fused.dropout_add_norm(*a, SEEDS, 0.25, 1e-5, kernels), layer),
            gradients(lambda *a: fused.bias_gelu(*a, "gelu", kernels, "mlp"), mlp))

  mesh = jax.make_mesh((2, 2, 2), sharding.MESH_AXES, axis_types=(AxisType.Auto,) * 3)
  with jax.set_mesh(mesh):
    ours = jax.jit(functools.partial(all_of, "interpret"))()
  check_equal(ours, all_of("xla"))


def test_every_tpu_drops_what_one_would():
  arguments, mask = attention_inputs(128, heads=4, head_dim=64)
  arguments, mask = (jnp.concatenate([arguments[0], arguments[0] + 1]), arguments[1]), jnp.concatenate([mask, mask])

  def both(kernels):
    return gradients(lambda *a: attention.attention(*a, mask, SEEDS, 0.25, kernels), arguments)

  mesh = jax.make_mesh((2, 2, 2), sharding.MESH_AXES, axis_types=(AxisType.Auto,) * 3)
  with jax.set_mesh(mesh):
    ours = jax.jit(functools.partial(both, "interpret_pallas"))()
  check_equal(ours, jax.jit(functools.partial(both, "xla"))())


@pytest.mark.parametrize("kernels", ("interpret", "recompute"))
def test_heads_that_devices_cannot_share_are_left_to_the_compiler(kernels):
  """Two heads on four devices of the tensor axis: a generator of ELECTRA-Base has four."""
  arguments, mask = attention_inputs(32)
  plain = attention.attention(*arguments, mask, SEEDS, 0.0, "xla")
  with jax.set_mesh(jax.make_mesh((1, 2, 4), sharding.MESH_AXES, axis_types=(AxisType.Auto,) * 3)):
    ours = jax.jit(lambda *a: attention.attention(*a, mask, SEEDS, 0.0, kernels))(*arguments)
  check_equal(ours, plain)


def losses_of_updates(kernels, num_updates=50):
  """Of one layer with two heads of 64 and dropout, by gradient descent; rows of 128 and 40 tokens, in float32."""
  layer = transformer.Layer(transformer.TransformerConfig(
    vocab_size=8, num_tokens=8, embedding_size=128, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=128, position_offset=0, type_vocab_size=1, hidden_act="gelu",
    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12, initializer_range=0.1,
    dtype=jnp.dtype("float32"), kernels=kernels))
  x, target = (normal(2, 128, 128, seed=seed) for seed in (0, 1))
  mask = jnp.arange(128) < jnp.array([[128], [40]])
  key = jax.random.key(0)

  def loss(params, step):
    out, _ = layer.apply(params, (x, x), mask, True, rngs={"dropout": jax.random.fold_in(key, step)})
    return jnp.square(out - target).mean()

  def update(params, step):
    value, gradients = jax.value_and_grad(loss)(params, step)
    return jax.tree.map(lambda p, g: p - 3.0 * g, params, gradients), value

  params = layer.init({"params": key, "dropout": key}, (x, x), mask, True)
  return np.asarray(jax.jit(lambda params: jax.lax.scan(update, params, jnp.arange(num_updates)))(params)[1])


def test_updates_with_tpu_kernels_are_those_without():
  ours, theirs = losses_of_updates("interpret_pallas"), losses_of_updates("xla")
  assert theirs[-1] < 0.9 * theirs[0]  # it learns
  np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_dropout_keeps_its_share_and_its_expectation():
  x = dropout.dropout(jnp.ones((64, 1024)), SEEDS, 0.1)
  assert abs(float((x == 0).mean()) - 0.1) < 4 * (0.1 * 0.9 / x.size) ** 0.5
  rows = (x == 0).mean(1)  # neither rows nor columns share their fate
  assert 0.8 < float(rows.std()) / (0.09 / 1024) ** 0.5 < 1.2
  assert 0.8 < float((x == 0).mean(0).std()) / (0.09 / 64) ** 0.5 < 1.2


def keep_of_pairs(rate, num_rows=2048, num_columns=512, seeds=SEEDS):
  row, column = (jnp.arange(size, dtype=jnp.uint32) for size in (num_rows, num_columns))
  return np.asarray(dropout.keep_pairs(seeds, row, column, dropout.pair_rate(rate)))


@pytest.mark.parametrize("rate", (0.05, 0.1, 0.5, 0.9))
def test_pairs_are_dropped_independently(rate):
  """Neighbours, the four that share a word, and whole rows and columns: all correlations are those of chance."""
  rate_of_pairs = dropout.pair_rate(rate)
  deviation = (rate_of_pairs * (1 - rate_of_pairs)) ** 0.5
  x = (1 - keep_of_pairs(rate) - rate_of_pairs) / deviation  # of mean 0 and variance 1
  assert abs(rate_of_pairs - rate) <= 1 / 512 and abs(x.mean()) < 4 / x.size ** 0.5
  for down, right in ((0, 1), (1, 0), (0, 8), (8, 0), (8, 8), (1, 1), (0, 16), (16, 0), (0, 64), (64, 0), (128, 128)):
    product = x[down:, right:] * x[:x.shape[0] - down, :x.shape[1] - right]
    assert abs(product.mean()) < 4.5 / product.size ** 0.5, (down, right)
  for axis in (0, 1):
    assert abs(x.mean(axis).var() * x.shape[axis] - 1) < 5 * (2 / x.shape[1 - axis]) ** 0.5, axis
  corners = x[8:, 8:] * x[:-8, :-8] * x[8:, :-8] * x[:-8, 8:]
  assert abs(corners.mean()) < 4.5 / corners.size ** 0.5


def test_neighbouring_heads_drop_other_pairs():
  first, second = (keep_of_pairs(0.5, seeds=dropout.child_seeds(SEEDS, np.uint32(head))) for head in (6, 7))
  assert abs((first == second).mean() - 0.5) < 0.005


@pytest.mark.parametrize("rate", (1 / 256, 0.1, 0.5, 0.7, 255 / 256))
def test_all_bytes_of_a_word_at_once_tell_what_each_does(rate):
  rate = dropout.pair_rate(rate)
  words = dropout.bits(SEEDS, jnp.arange(4096, dtype=jnp.uint32))
  each = np.asarray(words)[:, None] >> np.arange(0, 32, 8, dtype=np.uint32) & 255
  found = np.asarray(dropout.kept_bytes(words, rate))[:, None] >> np.arange(7, 32, 8, dtype=np.uint32) & 1
  np.testing.assert_array_equal(found == 1, each >= rate * 256)


def test_neighbouring_seeds_are_independent():
  masks = [dropout.keep_mask(SEEDS + jnp.array(step, jnp.uint32), (1 << 16,), 0.5)
           for step in ((0, 0), (1, 0), (0, 1), (2**31, 0))]
  for other in masks[1:]:
    assert abs(float((masks[0] == other).mean()) - 0.5) < 0.01


def test_the_backward_pass_drops_the_same_elements():
  out, pullback = jax.vjp(lambda x: dropout.dropout(x, SEEDS, 0.5), jnp.ones(1000))
  np.testing.assert_array_equal(pullback(jnp.ones(1000))[0], out)


@pytest.mark.parametrize("kernels, dtype, chosen", (("auto", "float32", "xla"), ("auto", "bfloat16", "xla"),
                                                    ("triton", "bfloat16", "triton"),
                                                    ("mosaic", "bfloat16", "mosaic")))
def test_no_kernel_is_chosen_on_cpu(kernels, dtype, chosen):
  assert triton_rows.choose(kernels, dtype) == chosen


@pytest.mark.parametrize("device_kind, dtype, barriers, passes", (
  ("TPU v5 lite", "bfloat16", 0, 1), ("TPU v5 lite", "float32", 0, 2), ("TPU v4", "bfloat16", 1, 1)))
def test_tpus_take_norms_with_the_product_before_where_fast_memory_holds_them(device_kind, dtype, barriers, passes,
                                                                              monkeypatch):
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  monkeypatch.setattr(sharding, "device_kind", lambda: device_kind)
  assert triton_rows.choose("auto", "bfloat16") == "pallas"
  row, x = jnp.ones(128), jnp.ones((1, 2, 128), dtype)
  program = str(jax.make_jaxpr(lambda x: fused.dropout_add_norm(x, x, row, row, row, SEEDS, 0.0, 1e-6, "pallas"))(x))
  assert program.count("optimization_barrier") == barriers
  assert (" max " in program) == (passes == 1)  # the variance of one pass is a difference, kept above 0


@pytest.mark.parametrize("length, fits", ((128, True), (512, True), (64, True), (16, True), (8, False), (96, False),
                                          (384, True), (200, False)))
def test_lengths_that_the_attention_kernels_take(length, fits):
  assert triton_attention.fits("triton", (1, length, 2, 3, 64)) is fits
  assert not triton_attention.fits("xla", (1, length, 2, 3, 64))


@pytest.mark.parametrize("kernels, head_dim", (("triton", 64), ("mosaic", 64), ("mosaic", 128)))
@pytest.mark.parametrize("length", (128, 512))
def test_attention_kernels_lower_for_a_gpu(length, kernels, head_dim):
  """The programs are built here, without a GPU."""
  arguments, mask = attention_inputs(length, head_dim=head_dim, dtype=jnp.bfloat16)
  text = lowered(lambda *a: attention.attention(*a, mask, SEEDS, 0.1, kernels), arguments)
  assert ("attention_forward" in text and "attention_backward" in text) == (kernels == "triton")
  assert text.count("@mosaic_gpu") == (2 if kernels == "mosaic" else 0)


@pytest.mark.parametrize("length, heads, head_dim, dtype, tensor, fits", (
  (128, 2, 64, "bfloat16", 1, True), (512, 12, 64, "bfloat16", 2, True), (512, 12, 64, "bfloat16", 4, False),
  (512, 1, 64, "bfloat16", 1, False), (512, 3, 64, "bfloat16", 1, False), (512, 2, 128, "bfloat16", 1, False),
  (64, 2, 64, "bfloat16", 1, False),
  (1024, 2, 64, "bfloat16", 1, False), (512, 2, 64, "float32", 1, False)))
def test_what_the_tpu_kernels_take(length, heads, head_dim, dtype, tensor, fits):
  shape = (1, length, heads, 3, head_dim)
  assert tpu_attention.fits("pallas", shape, jnp.dtype(dtype), tensor) is fits
  assert not tpu_attention.fits("xla", shape, jnp.dtype(dtype), tensor)


def test_tpu_kernels_lower_for_a_tpu():
  """The programs are built here, without a TPU; what the kernels do not take is the compiler's."""
  for length, count in ((512, 2), (64, 0)):
    arguments, mask = attention_inputs(length, head_dim=64, dtype=jnp.bfloat16)
    text = lowered(lambda *a, mask=mask: attention.attention(*a, mask, SEEDS, 0.1, "pallas"), arguments, "tpu")
    assert text.count("@tpu_custom_call") == count


@pytest.mark.parametrize("length, head_dim, dtype, fits", ((128, 64, "bfloat16", True), (512, 64, "bfloat16", True),
                                                           (512, 128, "bfloat16", True), (64, 64, "bfloat16", False),
                                                           (512, 32, "bfloat16", False),
                                                           (1024, 64, "bfloat16", False), (512, 64, "float32", False)))
def test_what_the_hopper_kernels_take(length, head_dim, dtype, fits):
  shape = (1, length, 2, 3, head_dim)
  assert mosaic_attention.fits("mosaic", shape, jnp.dtype(dtype)) is fits
  assert not mosaic_attention.fits("triton", shape, jnp.dtype(dtype))


@pytest.mark.parametrize("kernels, rows, inputs, outputs, dtype, hidden_act, fits", (
  ("mosaic", 512, 768, 3072, "bfloat16", "gelu", True), ("mosaic", 128, 256, 1024, "bfloat16", "gelu", True),
  ("mosaic", 512, 768, 768, "bfloat16", "gelu", False), ("mosaic", 512, 128, 1024, "bfloat16", "gelu", False),
  ("mosaic", 64, 768, 3072, "bfloat16", "gelu", False), ("mosaic", 512, 768, 3072, "float32", "gelu", False),
  ("mosaic", 512, 768, 3072, "bfloat16", "gelu_new", False), ("triton", 512, 768, 3072, "bfloat16", "gelu", False)))
def test_products_that_end_in_gelu(kernels, rows, inputs, outputs, dtype, hidden_act, fits):
  assert linear_gelu.fits(kernels, (1, rows, inputs), outputs, hidden_act, jnp.dtype(dtype)) is fits


@pytest.mark.parametrize("batch", (2, 1))
def test_gelu_within_a_product_lowers_for_a_gpu(batch):
  """Two programs share their loads where the number of tiles of rows is even."""
  arguments = (normal(batch, 128, 256, dtype=jnp.bfloat16), normal(256, 1024, dtype=jnp.bfloat16), normal(1024))
  text = lowered(lambda *a: linear_gelu.linear_gelu(*a, "mosaic"), arguments)
  assert text.count("@mosaic_gpu") == 1 and "activation_gradients" in text


def test_row_kernels_lower_for_a_gpu():
  x, row = normal(2, 64, 768, dtype=jnp.bfloat16), normal(768)
  assert "norm_gradients" in lowered(lambda *a: fused.dropout_add_norm(*a, SEEDS, 0.1, 1e-12, "triton"),
                                     (x, x, row, row, row))
  for hidden_act in ("gelu", "gelu_new"):
    text = lowered(lambda *a, act=hidden_act: fused.bias_gelu(*a, act, "triton"), (x, row))
    assert "activation_gradients" in text


def lowered(function, arguments, platform="cuda") -> str:
  traced = jax.jit(lambda *a: gradients(function, a)).trace(*arguments)
  return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("kernels", ["xla", "interpret"])
def test_attention_over_padding_alone_has_a_gradient(kernels):
  product = jax.random.normal(jax.random.key(0), (2, 16, 1, 3, 16))
  mask = jnp.arange(16) < jnp.array([[16], [0]])
  seeds, bias = jnp.array([1, 2], jnp.uint32), jnp.ones((1, 3, 16))

  @jax.jit
  def gradients(product, bias):
    return jax.value_and_grad(lambda *x: (attention.attention(*x, mask, seeds, 0.1, kernels)[0] ** 2).sum(), (0, 1))(
      product, bias)

  value, (of_product, of_bias) = gradients(product, bias)
  assert np.isfinite(value) and np.isfinite(of_product).all() and np.isfinite(of_bias).all()
  assert np.abs(of_product[0]).max() > 0 == np.abs(of_product[1]).max()
