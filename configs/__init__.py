"""Recipes: data only. They import nothing but ml_collections and `configs.common`."""
