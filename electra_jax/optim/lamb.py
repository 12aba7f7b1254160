"""What is LAMB? AdamW's direction, rescaled per parameter to the parameter's own norm (ELECTRA Appendix A)."""

from collections.abc import Callable

import optax

from electra_jax.optim import multi_tensor
from electra_jax.optim.adamw import adamw


def lamb(config_optimizer, decay_mask: Callable) -> optax.GradientTransformation:
  """AdamW's direction u times |parameter| / |u|, for the parameters that decay; the rest keep AdamW's u.

  A parameter or a direction of norm zero has ratio 1: a table that starts at zero can still move.

  Differs from optax.lamb, whose mask covers only the decay: there a layer-norm scale or a bias also moves by its own
  norm. The LAMB authors' code excludes both from both.
  """
  return optax.chain(adamw(config_optimizer, decay_mask), optax.masked(multi_tensor.scale_by_trust_ratio(), decay_mask))
