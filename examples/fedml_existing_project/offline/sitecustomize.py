"""No phoning home: FedML asks its cloud for settings whenever it starts, tracking on or off."""

import sys


class _Quiet:
    """Changes fedml.core.mlops once it is imported."""

    def find_spec(self, name, path=None, target=None):
        module = sys.modules.get("fedml.core.mlops")
        if hasattr(module, "init"):
            module.fetch_config = lambda *args, **more: False
            sys.meta_path.remove(self)
        return None


sys.meta_path.insert(0, _Quiet())
