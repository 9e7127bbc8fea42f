#!/bin/sh
# Every collective of torch.distributed on RANKS ranks over two simulated nodes (multinode.py); ./test/run_multinode_sim.sh [RANKS], 2 by default.
here=$(dirname -- "$(readlink -f -- "$0")")
python=${FAKEGPU_PYTHON:-$here/../.venv/bin/python}
command -v "$python" >/dev/null 2>&1 || python=python3
exec "$python" "$here/multinode.py" "${1:-2}" "$here/programs/collectives.py"
