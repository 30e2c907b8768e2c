"""The command line."""

from dpfl_plugin import interrupts as interrupts  # before all others: see there
