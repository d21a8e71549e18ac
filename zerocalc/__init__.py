"""zerocalc: what training a large model under ZeRO or FSDP costs, before a GPU is rented."""

__version__ = "0.1.0"
