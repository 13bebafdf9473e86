"""What the nodes of a job have in common: the network between them, and the store through which they meet."""

import contextlib

from directory import Directory
from etcd import Etcd, EtcdOnDisk
from netns import Network

STORE = "store"  # the node that etcd runs on
QUOTA_BYTES = 16 << 20  # of etcd; so little that it can be filled in a moment


class Surroundings:
    """`root` is a folder of the job's own. Nothing of what this made is left when it is closed."""

    def __init__(self, root, has_network, coordinator):
        with contextlib.ExitStack() as made:
            self.network = Network() if has_network else Loopback()
            made.callback(self.network.close)
            self.store = Directory(root / "coordination") if coordinator == "directory" else self._etcd(root / "etcd")
            made.callback(self.store.stop)
            self.store.start()
            self._closing = made.pop_all()

    def _etcd(self, folder):
        self.network.add(STORE)
        kind = EtcdOnDisk if self.network.has_links else Etcd
        address, quota = self.network.address(STORE), str(QUOTA_BYTES)
        return kind(folder, self.network.enter(STORE), ("--address", address, "--quota", quota))

    def close(self):
        self._closing.close()


class Loopback:
    """No network at all: nodes are processes of this machine that talk over its loopback interface."""

    interface = "lo"
    has_links = False

    def add(self, node):
        pass

    def remove(self, node):
        pass

    def address(self, node):
        return "127.0.0.1"

    def enter(self, node):
        return []

    def close(self):
        pass
