"""Recipes: data only. They import nothing but ml_collections, `configs.common` and `electra_jax.recipes`."""
