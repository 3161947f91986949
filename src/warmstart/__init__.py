"""warmstart: a good model from the first few samples, and how sure it is."""

__version__ = "0.1.0"
