from dataclasses import dataclass


@dataclass
class Options:
    pass
