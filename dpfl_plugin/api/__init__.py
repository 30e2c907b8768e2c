"""The public Python interface; `dpfl_plugin` itself exports its names, each loaded when it is first used."""
