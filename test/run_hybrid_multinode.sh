#!/bin/sh
# DDP with worked-out numbers on RANKS ranks over two nodes joined by TCP (multinode.py); ./test/run_hybrid_multinode.sh [RANKS], 2 by default.
# FAKEGPU_MODE chooses who computes: simulate (default) or hybrid on a real GPU.
here=$(dirname -- "$(readlink -f -- "$0")")
python=${FAKEGPU_PYTHON:-$here/../.venv/bin/python}
command -v "$python" >/dev/null 2>&1 || python=python3
exec "$python" "$here/multinode.py" "${1:-2}" "$here/test_ddp_hybrid_numerics.py" --variant all
