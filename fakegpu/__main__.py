"""`python3 -m fakegpu`: the same as ./fgpu, without preparing the checkout."""

import sys

from fakegpu.cli import main

sys.exit(main())
