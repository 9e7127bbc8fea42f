#!/bin/sh
# DDP training on RANKS ranks over two simulated nodes, compared with one process (multinode.py); ./test/run_ddp_multinode.sh [RANKS], 2 by default.
here=$(dirname -- "$(readlink -f -- "$0")")
python=${FAKEGPU_PYTHON:-$here/../.venv/bin/python}
command -v "$python" >/dev/null 2>&1 || python=python3
exec "$python" "$here/multinode.py" "${1:-2}" "$here/../verification/train_ddp.py"
