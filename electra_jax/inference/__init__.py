"""Answers of trained models: loading, and what pre-training heads and task heads predict."""
