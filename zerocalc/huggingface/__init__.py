"""Hugging Face models: a config.json, read by its family, as a model whose parameters are counted
exactly.
"""
