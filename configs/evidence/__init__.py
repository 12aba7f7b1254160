"""Recipes of `launch/reproduce.sh`: the papers' claims, repeated with ELECTRA-Small's sizes on a budget of minutes."""
