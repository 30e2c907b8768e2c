"""The command line."""

from dpfl_plugin.cli import starting as starting  # before all others: see there
