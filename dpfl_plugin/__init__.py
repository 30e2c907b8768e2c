"""Differentially private federated learning with drift control."""

__version__ = "0.1.0"
