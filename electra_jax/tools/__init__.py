"""Small programs around a run, each started with `python -m electra_jax.tools.NAME --help`."""
