"""Answers of trained models: how a run is loaded, what pre-training heads and task heads say."""
