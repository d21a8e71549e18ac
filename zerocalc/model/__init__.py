"""The one list of tensors: each module stands in one file and yields its parameters and what it
saves for backward.
"""
