"""electra_jax: RoBERTa and ELECTRA pre-training in JAX/Flax. Start reading at `pretrain.py`."""
