"""A pytest plugin: processes begin as they do by default on Linux from Python 3.14 on.

pytest -p tests.support.forkserver
"""

import multiprocessing

multiprocessing.set_start_method("forkserver")
# Else each of them would import it, which takes seconds.
multiprocessing.set_forkserver_preload(["storage_loader.torch"])
