"""Recipes of fine-tuning: a row of hyper-parameters for each task."""
