"""`python -m ckptengine.run` is `ckptrun`."""

import sys

from ._main import main

sys.exit(main())
