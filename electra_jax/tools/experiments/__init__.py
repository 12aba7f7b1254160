"""Experiments: rows of pre-trainings and fine-tunings under one budget, run, compared and published."""
