"""``python -m dpfl_plugin`` is ``dpfl``."""

from dpfl_plugin import own_folders

if __name__ == "__main__":
    own_folders.leave_out_working_folder()  # before anything that is not Python's own is imported
    from dpfl_plugin.cli.main import main

    main()
