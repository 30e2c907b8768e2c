"""``python -m dpfl_plugin`` is ``dpfl``."""

from dpfl_plugin.cli.main import main

if __name__ == "__main__":
    main()
